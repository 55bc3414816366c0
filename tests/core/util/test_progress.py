"""Progress: silent for two seconds, then a line at most once a second, of what is under way at that moment."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pathways_nb.util.progress import Progress, show_progress, tell_reader


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


def test_where_lines_stay_they_come_more_and_more_seldom(passes, capsys) -> None:
    progress = Progress()
    for second in range(61):
        passes.append(second)
        progress.tell("compiling")
    told = [int(line.split("(")[1].split()[0]) for line in capsys.readouterr().err.splitlines()]
    assert told == [3, 5, 8, 12, 18, 27, 41]


def test_a_line_that_was_said_is_taken_back_when_the_work_ends_or_fails(passes) -> None:
    said: list[str] = []
    with Progress(said.append) as progress:
        progress.tell("too early")
    assert said == []

    def fail() -> None:
        with Progress(said.append) as progress:
            passes.append(passes[-1] + 3)
            progress.tell("dividing")
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()
    assert said == ["dividing (3 s)", ""]


def test_outside_of_a_notebook_lines_go_to_standard_error_at_once(capsys) -> None:
    show_progress("three of five")
    show_progress("")
    tell_reader("done")
    assert capsys.readouterr() == ("", "three of five\ndone\n")


class Cell:
    """The outputs of a notebook's cell, and the shell that runs it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.outputs: list[dict[str, str]] = []
        self.ends: list[Callable[[], None]] = []
        events = SimpleNamespace(register=lambda _, handler: self.ends.append(handler))
        shell = SimpleNamespace(kernel=object(), events=events)
        monkeypatch.setattr("IPython.get_ipython", lambda: shell)
        monkeypatch.setattr("IPython.display.display", self.display)

    def display(self, bundle: dict[str, str], raw: bool, display_id: bool = False) -> Any:
        """Add an output, as IPython does."""
        at = len(self.outputs)
        self.outputs.append(bundle)
        return SimpleNamespace(update=lambda other, raw: self.outputs.__setitem__(at, other))


def test_in_a_notebook_it_is_one_output_that_is_updated_in_place_and_goes(monkeypatch, capsys) -> None:
    cell = Cell(monkeypatch)
    for line in ("one", "two"):
        show_progress(line)
    assert cell.outputs == [{"text/plain": "two"}]
    show_progress("")
    assert "display: none" in cell.outputs[0]["text/html"]
    assert cell.outputs[0]["text/plain"] == ""
    show_progress("another")
    assert cell.outputs[1:] == [{"text/plain": "another"}]
    (end,) = cell.ends
    end()
    assert "display: none" in cell.outputs[1]["text/html"], "the cell has ended, whatever became of the work"
    tell_reader("this stays")
    show_progress("")
    assert cell.outputs[2:] == [{"text/plain": "this stays"}]
    assert capsys.readouterr() == ("", ""), "nothing is pink"
