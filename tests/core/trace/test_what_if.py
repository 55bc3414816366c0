"""What if: exact for schedules of fixed order, and honest about the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.trace.causality.what_if import what_if
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_nb.trace.summary import summarise
from tests.core.trace.random_records import DEVICES, Made, records, schedules
from tests.support.examples import examples

message = Label("stall", "message", "p", island=0, route="DCN")
f = Label("compute", "forward", "p", "ann", node=0, island=0, devices=4)
move = Label("transfer", "left → right", "p", "ann", node=1, island=1, devices=4, parents=(0,))
g = Label("compute", "loss", "p", "ann", node=1, island=1, devices=4, parents=(1,))
other = Label("compute", "other", "q", "bob", node=0, island=0, devices=4)
rows = [Row(message, 0, 1, 0), Row(f, 1, 5, 0), Row(move, 5.5, 6, 0), Row(g, 6, 10, 0), Row(other, 5, 9, 1)]
events = Events.from_rows(rows)


@examples(80)
@given(schedules(shortest=0), st.sampled_from(["compute", "transfer"]), st.sampled_from([0.5, 2.0, 4.0]))
def test_it_is_what_a_new_simulation_gives(made: Made, kind: str, faster: float) -> None:
    chosen = [label.kind == kind for label in made.labels]
    if not any(chosen):
        return
    lasts = [seconds / faster if fast else seconds for seconds, fast in zip(made.lasts, chosen, strict=True)]
    found = what_if(made.events(), kind=kind, faster=faster)
    assert (found.before, found.after) == (max(made.ends()), max(made.ends(lasts)))
    assert found.matched == sum(chosen)
    assert found.path.length == found.after


@examples(80)
@given(schedules(), st.integers(0, 8), st.floats(0.2, 20))
def test_one_node_of_a_program_may_be_faster(made: Made, node: int, faster: float) -> None:
    if f"n{node}" in [label.name for label in made.labels]:
        pairs = zip(made.labels, made.lasts, strict=True)
        lasts = [seconds / faster if label.name == f"n{node}" else seconds for label, seconds in pairs]
        found = what_if(made.events(), node=f"n{node}", faster=faster)
        assert found.after == pytest.approx(max(made.ends(lasts)))


@examples(80)
@given(records())
def test_what_is_as_fast_as_it_was_changes_nothing(events: Events) -> None:
    makespan = summarise(events, (DEVICES, DEVICES)).makespan
    for kind in ("compute", "transfer", "enqueue"):
        if events.is_("kind", kind).any():
            found = what_if(events, kind=kind, faster=1)
            assert found.after == pytest.approx(found.before, abs=1e-9)
            assert found.before == pytest.approx(makespan)


def test_gaps_are_kept_and_the_new_path_is_told() -> None:
    found = what_if(events, node="forward", faster=4)
    assert (found.before, found.after, found.matched) == (10, 7, 1)
    assert found.summary_line() == (
        "if forward (1 event) were 4 times as fast: makespan 10 s → 7 s, 1.43 times as fast. Order and gaps as "
        "recorded; an estimate: its times were measured."
    )
    assert "Then the critical path 7 s: compute 71%, dispatch 14%, transfer 14%" in repr(found)
    assert what_if(events, program="p", kind="compute", faster=4).after == 6, "then other, which begins at 2"
    assert [segment.name for segment in what_if(events, client="ann", faster=100).path.segments][-1] == "other"
    assert what_if(events, node="loss", faster=0.5).after == 14


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"faster": 2}, "what_if: nothing is named that is faster. Write node='name', program='name'"),
        ({"node": "forwad", "faster": 2}, "what_if(node='forwad'): nothing in this run matches; did you mean "
                                          "'forward'? There are: 'forward', 'left → right', 'loss', 'other'."),
        ({"kind": "transfers", "faster": 2}, "kind='transfers'): nothing in this run matches; did you mean 'transfer'?"),
        ({"program": "q", "node": "loss", "faster": 2}, "what_if(node='loss', program='q'): there are such events, but none "
                                                        "that is all of this at once."),
        ({"kind": "memory", "faster": 2}, "what_if(kind='memory'): nothing in this run matches"),
        ({"node": "loss", "faster": 0}, "what_if(faster=0): write how many times as fast, a number above 0."),
        ({"node": "loss", "faster": "2"}, "what_if(faster='2'): write how many times"),
        ({"node": 3, "faster": 2}, "what_if(node=3): nothing in this run matches."),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(asked: dict[str, object], text: str) -> None:
    with pytest.raises(pw.UsageError) as refused:
        what_if(events, **asked)
    assert text in str(refused.value)
