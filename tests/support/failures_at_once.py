"""A test that fails is shown when it fails: a run that is stopped from outside does not reach pytest's own summary."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Listen in the process that hears of all tests."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(terminal), "pathways-failures-at-once")


class FailuresAtOnce:
    """Writes the report of each failure.

    Args:
        terminal: pytest's reporter.
    """

    def __init__(self, terminal: pytest.TerminalReporter):
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a failure of a test, its setup or its teardown."""
        if report.failed:
            self.terminal.write_sep("_", f"{report.nodeid} ({report.when})")
            self.terminal.write_line(report.longreprtext)
