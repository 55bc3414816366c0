"""Progress: silent for two seconds, then a line at most once a second, of what is under way at that moment."""

from __future__ import annotations

import itertools

import pytest

from pathways_nb.util.progress import Progress, to_standard_error


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that it is: what is in the list, last."""
    now = [0.0]
    monkeypatch.setattr("pathways_nb.util.progress.monotonic", lambda: now[-1])
    return now


def test_it_is_silent_for_two_seconds_then_says_what_and_how_far(passes) -> None:
    said: list[str] = []
    progress = Progress(said.append)
    for number in range(8):
        progress.tell(f"preparing {number} of 8, conv")
        passes.append(passes[-1] + 0.7)
    assert said == ["preparing 3 of 8, conv (2 s)", "preparing 5 of 8, conv (4 s)", "preparing 7 of 8, conv (5 s)"]


def test_a_line_that_costs_something_is_made_only_when_it_is_said(passes, capsys) -> None:
    made = itertools.count()
    progress = Progress()
    for _ in range(40):
        progress.tell(lambda: f"line {next(made)}")
        passes.append(passes[-1] + 0.1)
    assert capsys.readouterr().err == "line 0 (2 s)\nline 1 (3 s)\n"


def test_what_it_says_goes_to_standard_error_at_once(capsys) -> None:
    to_standard_error("three of five")
    assert capsys.readouterr() == ("", "three of five\n")
