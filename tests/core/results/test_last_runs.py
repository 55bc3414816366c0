"""A run of a cell finds what the same cell did the last time: by its id, else by its code; not for ever, and not if unwanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pathways_nb as pw
from pathways_nb.results import last_runs
from pathways_nb.results.run import Run
from pathways_nb.trace.record import Events, Record
from pathways_nb.trace.rows import Label, Row
from pathways_nb.util import displaying


class FakeShell:
    """IPython's shell, as far as it tells which cell it runs."""

    cell = execution = ""

    def get_parent(self) -> dict[str, Any]:
        """The message that asked for this run of the cell."""
        return {"header": {"msg_id": self.execution}, "metadata": {"cellId": self.cell} if self.cell else {}}


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeShell]:
    found = FakeShell()
    monkeypatch.setattr(displaying, "ipython_shell", lambda: found)
    yield found
    pw.compare_reruns(False)
    pw.compare_reruns(True)


@pytest.fixture
def again(shell: FakeShell) -> Callable[..., Events | None]:
    """``again(seconds, cell, execution, source, status)`` is what a run of a cell finds."""

    def run_cell(
        seconds: float, cell: str = "", execution: str = "", source: str = "", status: str = "ok"
    ) -> Events | None:
        shell.cell, shell.execution = cell, execution
        done = Row(Label("compute", "f", "p", island=0), 0.0, seconds, status=status)
        rows = [done, Row(Label("memory", "held"), 0.0, seconds)]
        record = Record.of(Events.from_rows(rows))
        return last_runs.exchange(Run("cell", (2,), record, about={"source": source}, finished=True))

    return run_cell


def ends(found: Events | None) -> list[float] | None:
    return None if found is None else found["end"].tolist()


def test_the_same_cell_is_known_by_its_id_whatever_its_code(again: Callable[..., Events | None]) -> None:
    assert again(1.0, "one", "1", "f()") is None
    assert again(2.0, "two", "2", "f()") is None
    assert ends(again(3.0, "one", "3", "g()")) == [1.0], "without levels of memory"
    assert ends(again(4.0, "one", "4", "g()")) == [3.0]


def test_the_recordings_of_one_cell_are_told_apart(again: Callable[..., Events | None]) -> None:
    assert [again(seconds, "loop", "1") for seconds in (1.0, 2.0)] == [None, None]
    assert [ends(again(seconds, "loop", "2")) for seconds in (3.0, 4.0)] == [[1.0], [2.0]]
    assert ends(again(5.0, "loop", "3")) == [3.0]


def test_without_an_id_a_cell_is_known_by_its_code_and_without_both_not_at_all(
    again: Callable[..., Events | None],
) -> None:
    assert again(1.0, source="f()") is None
    assert again(2.0, source="g()") is None
    assert ends(again(3.0, source="f()")) == [1.0]
    assert again(1.0) is again(1.0) is None


def test_it_can_be_switched_off_and_forgets_then(again: Callable[..., Events | None]) -> None:
    again(1.0, "one", "1")
    pw.compare_reruns(False)
    assert again(2.0, "one", "2") is None
    pw.compare_reruns()
    assert again(3.0, "one", "3") is None
    assert ends(again(4.0, "one", "4")) == [3.0]
    with pytest.raises(pw.UsageError, match=r"^compare_reruns\('off'\): write True or False\.$"):
        pw.compare_reruns("off")  # type: ignore[arg-type]


def test_what_failed_is_neither_compared_nor_kept(again: Callable[..., Events | None]) -> None:
    again(1.0, "one", "1")
    assert again(0.1, "one", "2", status="failed") is None
    assert ends(again(2.0, "one", "3")) == [1.0], "with the last that did not fail"


def test_a_recording_that_raised_counts_among_those_of_its_cell(
    again: Callable[..., Events | None], shell: FakeShell
) -> None:
    for seconds in (1.0, 2.0):
        again(seconds, "both", "1")
    shell.execution = "2"
    last_runs.pass_over(Run("cell", (2,)))
    assert ends(again(4.0, "both", "2")) == [2.0], "the second one, with the second one of the last time"


def test_long_runs_and_old_cells_are_not_kept(
    again: Callable[..., Events | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_runs, "MOST_RUNS", 2)
    for number in range(3):
        again(float(number), str(number), f"first {number}")
    assert ends(again(9.0, "2", "second")) == [2.0]
    assert again(9.0, "0", "third") is None, "the oldest was forgotten"
    monkeypatch.setattr(last_runs, "MOST_EVENTS", 1)
    assert again(9.0, "2", "fourth") is None


def test_the_sentence_and_the_setting_are_those_of_a_run() -> None:
    label = Label("compute", "total", "p", island=0, devices=2)
    run = Run("cell", (2,), Record.of(Events.from_rows([Row(label, 0.0, 1.0)])), finished=True)
    assert run.headline() == "The devices are busy 100 % of the time"
    run.last_time = Events.from_rows([Row(label, 3.0, 5.0)])
    assert run.headline().splitlines()[1:] == ["2.0 times as fast as last time: `total` takes 1 s less"]
    run.finished = False
    assert "last time" not in run.headline(), "while it goes on"


def test_a_run_of_nothing_says_so_when_it_is_over() -> None:
    run = Run("cell", (2,))
    assert run.headline() == ""
    run.finished = True
    assert run.headline() == "Nothing went through the controller here"
