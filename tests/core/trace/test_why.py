"""Why events began when they did: sentences, chains back to the beginning, and errors that say what to ask."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from pathways_nb.errors import UsageError
from pathways_nb.timing.waits import CALL, DATA, MEMORY, TURN, WINDOW
from pathways_nb.trace.causality.happened_before import Dag
from pathways_nb.trace.causality.why import Reasons, why
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import BY, Cause, Label, Row
from tests.core.trace.random_records import records
from tests.support.examples import examples

message = Label("stall", "message to island 0 on its way", "p", island=0, route="DCN")
f = Label("compute", "f", "p", "ann", node=0, island=0, devices=2)
move = Label("transfer", "left → right", "p", "ann", node=1, island=1, devices=2, parents=(0,), route="DCN")
g = Label("compute", "g", "p", "ann", node=1, island=1, devices=2, parents=(1,))
other = Label("compute", "other", "q", "bob", node=0, island=0, devices=1)


def texts(rows: list[Row], at: float, island: int, device: int = 0) -> list[str]:
    return [step.text for step in why(Events.from_rows(rows), at, island, device).steps]


def test_a_gap_is_told_back_to_the_call() -> None:
    rows = [Row(message, 0, 1e-3, 0, cause=BY[CALL]), Row(f, 1e-3, 3.7e-3, 0), Row(move, 3.7e-3, 4.1e-3, 0)]
    rows.append(Row(g, 4.1e-3, 8e-3, 0))
    found = why(Events.from_rows(rows), 2e-3, 1)
    assert [step.text for step in found.steps] == [
        "`g` on island 1 waited 4.1 ms for `f` on island 0 (data, inferred), of which 400 µs was its transfer",
        "`f` on island 0 waited 1 ms for the controller's message to island 0 (message, inferred)",
        "the controller's message to island 0 began when its program was called (call)",
    ]
    assert [step.event for step in found.steps] == [3, 1, 0], "the transfer is told with what made the value"
    assert found.steps[0].transfer == pytest.approx(4e-4)
    assert [step.inferred for step in found.steps] == [True, True, False]
    assert str(found).startswith("why island 1, dev 0 waits at 2 ms:\n")
    assert str(why(Events.from_rows(rows), 5e-3, 1)).startswith("why `g` on island 1 began at 4.1 ms:\n")


def test_what_was_recorded_is_not_inferred() -> None:
    rows = [Row(f, 0, 3, 0, cause=BY[CALL]), Row(move, 3, 4, 0, cause=BY[DATA]), Row(g, 4, 5, 0, cause=BY[DATA])]
    assert texts(rows, 2, 1)[0] == (
        "`g` on island 1 waited 4 s for `f` on island 0 (data), of which 1 s was its transfer"
    )


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (TURN, "`other` on island 0 waited 1 s for its turn among programs, behind `g` on island 1 (turn)"),
        (MEMORY, "`other` on island 0 waited 1 s for memory that came free with `g` on island 1 (memory)"),
        (WINDOW, "`other` on island 0 waited 1 s for `g` on island 1, because as many launches were under way as may "
         "be (window)"),
    ],
)  # fmt: skip
def test_the_controllers_reasons_are_told_in_words(reason: int, said: str) -> None:
    rows = [Row(f, 0, 1, 0), Row(g, 0, 2, 0), Row(other, 2, 3, 1, cause=Cause(reason, g, 0))]
    assert texts(rows, 1.5, 0)[0] == said


def test_what_is_on_no_device_and_what_did_not_wait_is_told_too() -> None:
    rows = [Row(f, 0, 1, 0), Row(message, 1, 1.5, 1, cause=Cause(TURN, f, 0)), Row(other, 1.5, 3, 1)]
    assert Reasons(Dag.of(Events.from_rows(rows))).cause(1).text == (
        "the controller's message to island 0 waited for its turn among programs, behind `f` on island 0 (turn)"
    )
    busy = Label("compute", "busy", "q", island=1, devices=2)
    rows = [Row(f, 0, 1, 0), Row(busy, 0, 2, 1), Row(move, 1, 2, 0, cause=BY[DATA]), Row(g, 2, 3, 0, cause=BY[DATA])]
    assert texts(rows, 2.5, 1)[0] == ("`g` on island 1 began right after what `f` on island 0 had made arrived (data)")


def test_what_nothing_explains_is_said() -> None:
    rows = [Row(f, 0, 1, 0), Row(other, 3, 4, 1)]
    assert texts(rows, 2, 0) == [
        "`other` on island 0 waited 2 s after `f` on island 0 (lane, inferred); nothing in the record says for what",
        "`f` on island 0 came first",
    ]
    assert texts([Row(f, 0, 1, 0), Row(other, 1, 2, 1)], 1.5, 0)[0] == (
        "`other` on island 0 began right after `f` on island 0 (lane, inferred)"
    )


def test_time_after_the_release_is_told_apart() -> None:
    rows = [Row(f, 0, 3, 0), Row(move, 3, 4, 0), Row(g, 4.5, 6, 0)]
    assert texts(rows, 2, 1)[0] == (
        "`g` on island 1 waited 4.5 s for `f` on island 0 (data, inferred), of which 1 s was its transfer; it began "
        "500 ms after that"
    )


@examples(60)
@given(records())
def test_every_chain_goes_back_to_what_came_first(events: Events) -> None:
    graph = Dag.of(events)
    reasons = Reasons(graph)
    begun = dict(zip(graph.events["id"].tolist(), graph.start.tolist(), strict=True))
    for row in range(len(graph.events)):
        steps = reasons.chain(row)
        assert steps[-1].source == -1
        assert [step.source for step in steps[:-1]] == [step.event for step in steps[1:]]
        assert all(begun[one.event] >= begun[two.event] for one, two in zip(steps, steps[1:], strict=False))
        assert all(0 <= step.transfer <= step.seconds + 1e-9 for step in steps)
        assert {step.event for step in steps} <= {int(graph.events["id"][i]) for i in graph.timed.chain(row)}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("soon", 0), "why(at='soon', island=0, device=0): write a time in seconds since the run began, such as at="),
        ((1, 7), "why(at=1, island=7, device=0): nothing ran on that device. Something ran on islands [0, 1]."),
        ((1, 0, 5), "why(at=1, island=0, device=5): nothing ran on that device."),
        ((9, 1), "why(at=9, island=1, device=0): the last event on that device ended at 5. Ask for an earlier time."),
    ],
)
def test_errors_say_what_can_be_asked(asked: tuple[float, int], said: str) -> None:
    rows = [Row(f, 0, 3, 0), Row(move, 3, 4, 0), Row(g, 4, 5, 0)]
    with pytest.raises(UsageError) as caught:
        why(Events.from_rows(rows), *asked)
    assert str(caught.value).startswith(said)


def test_a_device_of_a_gang_is_asked_alone() -> None:
    rows = [Row(f, 0, 1, 0), Row(other, 1, 2, 1), Row(f, 4, 5, 2)]
    assert np.isclose(why(Events.from_rows(rows), 3, 0, device=1).steps[0].seconds, 2), "the gang needs both devices"
