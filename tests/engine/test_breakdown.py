"""Where the time went: the parts add up, each moment counts once and for the first of its causes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pathways_nb.trace.breakdown import CAUSES, breakdown
from pathways_nb.trace.metrics import busy_between, covered, device_seconds
from pathways_nb.trace.record import Events, Label, Row

f, g = Label("compute", "f", island=0, devices=4), Label("collective", "g", island=1, devices=2)
send = Label("transfer", "x", island=1, bytes=100)


def test_causes_in_their_order() -> None:
    compiling, stall = Label("compile", "f"), Label("stall", "memory")
    rows = [Row(compiling, 0, 2), Row(f, 2, 4), Row(send, 4, 5), Row(g, 4.5, 6), Row(stall, 6, 7)]
    first, second = breakdown(Events.from_rows(rows), (4, 4), 0.0, 8.0)
    assert first.seconds == {"busy": 2, "compile": 2, "stall": 1, "transfer": 0, "elsewhere": 1.5, "unsent": 1.5}
    assert second.seconds == {"busy": 1.5, "compile": 2, "stall": 1, "transfer": 0.5, "elsewhere": 2, "unsent": 1}
    assert (first.bytes, second.bytes) == (0, 100)
    assert str(second) == (
        "island 1: busy 1.5 s (19%), compile 2 s (25%), stall 1 s (12%), transfer 500 ms (6%), elsewhere 2 s (25%), "
        "unsent 1 s (12%); 100 B received"
    )


def test_a_window_cuts_what_it_holds() -> None:
    events = Events.from_rows([Row(f, 0, 10), Row(send, 1, 9)])
    (only, _) = breakdown(events, (4, 4), 4.0, 6.0)
    assert only.seconds["busy"] == 2
    assert breakdown(events, (4, 4), 4.0, 6.0)[1].bytes == 0, "it began before the window"
    assert sum(breakdown(events, (4, 4), 20.0, 30.0)[0].seconds.values()) == 10


@st.composite
def records(draw: st.DrawFn) -> Events:
    kinds = st.sampled_from(["compute", "collective", "transfer", "compile", "stall", "wait"])
    rows = []
    for _ in range(draw(st.integers(0, 25))):
        start = draw(st.integers(0, 40)) / 4
        first = draw(st.integers(0, 3))
        label = Label(
            draw(kinds), "e", island=draw(st.integers(0, 1)), device=first, devices=draw(st.integers(1, 4 - first))
        )
        rows.append(Row(label, start, start + draw(st.integers(0, 20)) / 4))
    return Events.from_rows(rows)


@settings(max_examples=150, deadline=None)
@given(records(), st.integers(0, 30), st.integers(1, 40))
def test_the_parts_add_up_to_the_window(events: Events, start: int, length: int) -> None:
    for part in breakdown(events, (4, 4), start / 4, (start + length) / 4):
        assert tuple(part.seconds) == CAUSES
        assert min(part.seconds.values()) >= 0
        assert sum(part.seconds.values()) == pytest.approx(length / 4)


@settings(max_examples=150, deadline=None)
@given(records(), st.lists(st.integers(0, 80), min_size=2, max_size=12, unique=True))
def test_busy_time_is_the_same_however_it_is_cut(events: Events, cuts: list[int]) -> None:
    for island in (0, 1):
        mine = events.select(events.is_("kind", "compute", "collective") & events.is_("island", island))
        total = device_seconds(mine, 4).sum()
        times = np.array([-1.0, *sorted(cut / 4 for cut in cuts), 100.0])
        assert busy_between(mine, 4, times).sum() == pytest.approx(total)
        by_device = [mine.select((mine["device"] <= d) & (d < mine["device"] + mine["devices"])) for d in range(4)]
        assert total == pytest.approx(sum(map(covered, by_device)))
