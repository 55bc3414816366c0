"""``--durations-to``: seconds by test and by file, longest first, with setting up apart."""

from __future__ import annotations

import json
from types import SimpleNamespace

from tests.support.durations import Durations

PHASES = [
    ("tests/a.py::one", "setup", 2.0), ("tests/a.py::one", "call", 0.5), ("tests/a.py::one", "teardown", 0.25),
    ("tests/a.py::two", "call", 1.0), ("tests/b.py::three[x::y]", "call", 9.0),
]  # fmt: skip


def test_the_file_has_tests_and_files_longest_first(tmp_path) -> None:
    made = Durations(tmp_path / "build" / "durations.json")
    for name, when, seconds in PHASES:
        made.pytest_runtest_logreport(SimpleNamespace(nodeid=name, when=when, duration=seconds))
    made.pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace(option=SimpleNamespace(numprocesses=2))))
    found = json.loads(made.path.read_text())
    assert found["processes"] == 2
    assert list(found["files"].items()) == [
        ("tests/b.py", {"tests": 1, "setup": 0.0, "test": 9.0, "teardown": 0.0}),
        ("tests/a.py", {"tests": 2, "setup": 2.0, "test": 1.5, "teardown": 0.25}),
    ]
    assert list(found["tests"]) == ["tests/b.py::three[x::y]", "tests/a.py::one", "tests/a.py::two"]
    assert found["tests"]["tests/a.py::one"] == {"setup": 2.0, "test": 0.5, "teardown": 0.25}
