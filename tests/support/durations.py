"""Where the time of a test run goes: ``--durations-to FILE`` writes the seconds of each test and file as JSON.

Setting up is apart from the test itself, because what several tests share is set up in the first of them. With more than
one process, seconds of tests add up to more than the run takes.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

PHASES = {"setup": "setup", "call": "test", "teardown": "teardown"}
"""pytest's phases, and their names in the file."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--durations-to", metavar="FILE", type=Path, help="write the seconds of each test and file as JSON"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Listen in the process that hears of all tests."""
    path = config.getoption("--durations-to")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(path), "pathways-durations")


class Durations:
    """Sums of seconds by test and file."""

    def __init__(self, path: Path):
        self.path, self.began = path, time.monotonic()
        self.tests: dict[str, dict[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the seconds of one phase of a test."""
        self.tests.setdefault(report.nodeid, {})[PHASES[report.when]] = round(report.duration, 4)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write what was noted, longest first."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.summary(session.config), indent=1) + "\n")

    def summary(self, config: pytest.Config) -> dict[str, Any]:
        """Return the content of the file."""
        files: dict[str, dict[str, float]] = defaultdict(lambda: {"tests": 0, **dict.fromkeys(PHASES.values(), 0.0)})
        for name, phases in self.tests.items():
            row = files[name.partition("::")[0]]
            row["tests"] += 1
            for phase, seconds in phases.items():
                row[phase] = round(row[phase] + seconds, 4)
        return {
            "seconds": round(time.monotonic() - self.began, 2),
            "processes": getattr(config.option, "numprocesses", None) or 1,
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "files": _longest_first(files),
            "tests": _longest_first(self.tests),
        }


def _longest_first(rows: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return dict(sorted(rows.items(), key=lambda row: -sum(row[1].get(phase, 0.0) for phase in PHASES.values())))
