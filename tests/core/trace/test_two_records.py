"""Two records on one axis: both controllers stay, and what one record costs beyond the other adds up."""

from __future__ import annotations

import numpy as np
import pytest

from pathways_nb.trace import two_records
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_nb.trace.two_records import TwoRecords, as_one_record

f = Label("compute", "f", "p", node=1, island=0, devices=2)
g = Label("compute", "g", "p", node=2, island=0, device=1, devices=1)
send = Label("transfer", "x", "p", node=3, island=1, devices=2, bytes=8)


def costs(found: TwoRecords) -> dict[str, list[tuple[str, float]]]:
    """What each event costs beyond its partner, where it does."""
    names = found["name"].tolist()
    parts = {"within": found.surplus.within, "before": found.surplus.before}
    return {
        name: [(names[row], round(float(part[row]), 9)) for row in np.flatnonzero(part)] for name, part in parts.items()
    }


def test_island_is_below_island() -> None:
    one, two = Events.from_rows([Row(f, 6.0, 7.0)]), Events.from_rows([Row(send, 3.0, 4.0, 0, "exact", "failed")])
    events = as_one_record(one, two, 2)
    assert events["island"].tolist() == [0, 3]
    assert events["start"].tolist() == [0.0, 0.0]
    assert events["status"].tolist() == ["ok", "failed"]


def test_what_controllers_did_stays_from_the_first_dispatch_on_and_tells_whose_it_is() -> None:
    compiled, enqueue = Row(Label("compile", "f", "p"), 0.0, 5.0), Label("enqueue", "p", "p", island=0)
    held, waits = Label("stall", "memory: p needs 8 B", "p"), Row(Label("wait", "float(x)"), 4.0, 9.0)
    one = Events.from_rows([compiled, Row(enqueue, 6.0, 6.0), Row(f, 6.5, 7.0), Row(held, 7.0, 8.0), waits])
    found = as_one_record(one, one, 2)
    kinds = ["enqueue", "compute", "stall", "wait"]
    assert found["kind"].tolist() == kinds * 2, "what was compiled before is no part of it"
    assert found["island"].tolist() == [0, 0, -1, -1, 2, 2, -3, -3]
    assert found["start"].tolist() == [0.0, 0.5, 1.0, 0.0] * 2, "what Python waited before is cut off"
    assert found["end"].tolist() == [0.0, 1.0, 2.0, 3.0] * 2


def test_what_takes_longer_and_what_is_waited_longer_for_add_up_to_the_difference() -> None:
    one = Events.from_rows([Row(f, 0.0, 1.0), Row(g, 1.5, 2.0), Row(f, 2.0, 3.0)])
    two = Events.from_rows([Row(f, 5.0, 7.0), Row(g, 7.1, 8.0), Row(f, 9.0, 10.0)])
    found = as_one_record(one, two, 1)
    # Of f the first device waits since the f before it; the second since g.
    assert costs(found) == {"within": [("f", 1.0), ("g", 0.4)], "before": [("g", 0.4), ("f", 1.0)]}
    own, other = found.surplus.within + found.surplus.before, slice(0, len(one))
    assert own.sum() - 2 * own[other].sum() == pytest.approx((10.0 - 5.0) - (3.0 - 0.0)), "of the device that has all"


def test_transfers_are_shaded_only_where_they_take_longer_and_what_has_no_partner_never() -> None:
    one = Events.from_rows([Row(f, 0.0, 1.0), Row(send, 1.0, 2.0)])
    two = Events.from_rows([Row(f, 0.0, 1.0), Row(send, 3.0, 5.0), Row(g, 6.0, 9.0)])
    assert costs(as_one_record(one, two, 2)) == {"within": [("x", 1.0)], "before": []}


def test_rounding_is_no_difference_and_very_many_events_are_not_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (Events.from_rows([Row(f, at, at + 0.1), Row(send, at + 0.1, at + 0.2)]) for at in (0.0, 0.3))
    assert costs(as_one_record(one, two, 2)) == {"within": [], "before": []}
    longer = Events.from_rows([Row(f, 0.0, 5.0)])
    assert costs(as_one_record(one, longer, 2))["within"] == [("f", 4.9)]
    monkeypatch.setattr(two_records, "MOST_EVENTS", 2)
    assert costs(as_one_record(one, longer, 2)) == {"within": [], "before": []}
