"""A test that fails is shown when it fails: a run that is stopped from outside does not reach pytest's own summary."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Listen in the process that hears of all tests."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config), "pathways-failures-at-once")


class FailuresAtOnce:
    """Writes the report of each failure.

    Args:
        config: of the run; its reporter is registered later than this.
    """

    def __init__(self, config: pytest.Config):
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a failure of a test, its setup or its teardown."""
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_sep("_", f"{report.nodeid} ({report.when})")
            terminal.write_line(report.longreprtext)
