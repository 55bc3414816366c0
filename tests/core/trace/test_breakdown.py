"""Where the time went: the parts add up, and idle time is divided along what the next event waited for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathways_nb.trace.causality.breakdown import CAUSES, breakdown, idle
from pathways_nb.trace.causality.critical_path import CriticalPath, critical_path
from pathways_nb.trace.metrics import BUSY, busy_between, covered, device_seconds
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_nb.trace.summary import summarise
from tests.core.trace.random_records import DEVICES, Made, records, schedules
from tests.support.examples import examples

ISLANDS = (DEVICES, DEVICES)
sent = Label("stall", "message to island 0 on its way", "p", island=0, route="DCN")
sent_too = Label("stall", "message to island 1 on its way", "p", island=1, route="DCN")
f = Label("compute", "f", "p", node=0, island=0, devices=4)
move = Label("transfer", "x", "p", node=1, island=1, devices=2, parents=(0,), bytes=100)
g = Label("collective", "g", "p", node=1, island=1, devices=2, parents=(1,))
back = Label("transfer", "y", "p", node=2, island=0, devices=4, parents=(1,))
h = Label("compute", "h", "p", node=2, island=0, devices=4, parents=(2,))
rows = [Row(sent, 0, 1, 0), Row(sent_too, 0, 1, 0), Row(f, 1, 3, 0), Row(move, 3, 4, 0), Row(g, 4, 7, 0)]
rows += [Row(back, 7, 8.5, 0), Row(h, 8.5, 10, 0)]
there_and_back = Events.from_rows(rows)


def only(**seconds: float) -> dict[str, float]:
    """These causes, all others nothing."""
    named = {cause.replace("_", "-"): value for cause, value in seconds.items()}
    return {cause: named.get(cause, 0.0) for cause in CAUSES}


def test_idle_time_is_divided_along_what_the_next_event_waited_for() -> None:
    first, second = breakdown(there_and_back, ISLANDS, 0.0, 10.0)
    assert first.seconds == only(busy=3.5, dispatch=1, dependency=3, transfer=2.5)
    assert second.seconds == only(busy=3, dispatch=1, warm_up=2, transfer=1, drain=3)
    assert (first.bytes, second.bytes) == (0, 100)
    assert str(second) == (
        "island 1: busy 3 s (30%), transfer 1 s (10%), dispatch 1 s (10%), warm-up 2 s (20%), drain 3 s (30%); "
        "100 B received"
    )


def test_what_is_compiled_before_the_first_launch_counts_as_compiling() -> None:
    about = (
        ("wait", 0, 1),
        ("trace", 2, 3),
        ("lower", 3, 5),
        ("compile", 5, 9),
        ("enqueue", 9, 10),
        ("compute", 10, 12),
    )
    made = [
        Row(Label(kind, "f", "p", island=0 if start > 8 else -1, devices=1), start, end, 0 if start > 8 else -1)
        for kind, start, end in about
    ]
    events = Events.from_rows(made)
    assert [one.seconds for one in breakdown(events, (1,), 2.5, 8.0)] == [only(compile=5.5)]
    assert breakdown(events, (1,), 1.0, 12.0)[0].seconds == only(busy=2, dispatch=2, compile=7)
    again = Events.from_rows([Row(Label("compute", "g", "q", island=0, devices=1), 0, 1, 1), *made])
    assert critical_path(again).seconds == {"compile": 7, "compute": 3, "dispatch": 2}


def test_devices_of_a_run_are_told_apart() -> None:
    found = idle(there_and_back, ISLANDS)
    assert [(part.where, part.devices) for part in found.devices] == [
        ("island 0, dev 0–3", 4), ("island 1, dev 0–1", 2), ("island 1, dev 2–3", 2),
    ]  # fmt: skip
    assert found.of(0, 2) == only(busy=3.5, dispatch=1, dependency=3, transfer=2.5)
    assert found.of(1, 1) == only(busy=3, dispatch=1, warm_up=2, transfer=1, drain=3)
    assert found.of(1, 3) == only(other=10)
    assert found.seconds["busy"] == 4 * 3.5 + 2 * 3
    assert repr(found).splitlines()[:2] == [
        "time of each device, of 10 s: busy 25%, dependency 15%, transfer 15%, dispatch 8%, warm-up 5%, drain 8%, "
        "other 25% (causes inferred)",
        "  devices             busy  dependency  transfer  dispatch  warm-up  drain  other",
    ]
    with pytest.raises(LookupError, match="no device 4 on island 1; there are 0 to 3 on island 0, 0 to 3 on island 1"):
        found.of(1, 4)


def test_a_window_cuts_what_it_holds() -> None:
    first, second = breakdown(there_and_back, ISLANDS, 2.0, 8.0)
    assert first.seconds == only(busy=1, dependency=3, transfer=2)
    assert second.seconds == only(busy=3, warm_up=1, transfer=1, drain=1)
    inner, _ = breakdown(there_and_back, ISLANDS, 5.0, 6.0)
    assert inner.seconds == only(dependency=1), "what it waits for comes later"
    assert breakdown(there_and_back, ISLANDS, 3.5, 6.0)[1].bytes == 0, "the transfer began before the window"
    after, _ = breakdown(there_and_back, ISLANDS, 20.0, 30.0)
    assert after.seconds == only(drain=10)


@pytest.mark.parametrize(("reason", "cause"), [("memory of island 0 held by bob", "memory"), ("waits its turn", "scheduling")])  # fmt: skip
def test_what_held_a_run_back(reason: str, cause: str) -> None:
    made = [Row(Label("stall", reason, "q"), 2, 6, 1), Row(Label("enqueue", "q", "q", island=0), 6, 6.5, 1)]
    made += [
        Row(f, 0, 3, 0),
        Row(Label("compile", "q", "q"), 1, 1.5),
        Row(Label("compute", "q", "q", island=0, devices=4), 6.5, 9, 1),
    ]
    found = idle(Events.from_rows(made), (4,))
    assert found.of(0, 0) == only(busy=5.5, dispatch=0.5, **{cause: 3})


def test_compiling_and_python_are_told_apart() -> None:
    made = [
        Row(f, 0, 3, 0),
        Row(Label("compile", "q", "q"), 3.5, 7),
        Row(Label("enqueue", "q", "q", island=0), 8, 9, 1),
    ]
    made.append(Row(Label("compute", "q", "q", island=0, devices=4), 9, 10, 1))
    assert idle(Events.from_rows(made), (4,)).of(0, 0) == only(busy=4, compile=3.5, dispatch=2.5)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 3), (4, 8), (8, 4)])
def test_a_pipeline_warms_up_and_drains_as_its_closed_form_says(stages: int, microbatches: int) -> None:
    """Forward passes of GPipe: stage s waits for s others at first and for S - 1 - s at the end."""
    made = [
        Row(
            Label("compute", f"s{s}", "p", node=m * stages + s, island=0, device=s, devices=1,
                  parents=(m * stages + s - 1,) if s else ()),
            m + s, m + s + 1, 0,
        )
        for m in range(microbatches) for s in range(stages)
    ]  # fmt: skip
    found = idle(Events.from_rows(made), (stages,))
    for s in range(stages):
        assert found.of(0, s) == only(busy=microbatches, warm_up=s, drain=stages - 1 - s)


@examples(100)
@given(records(), st.integers(0, 30), st.integers(1, 40))
def test_the_parts_add_up_to_the_window(events: Events, start: int, length: int) -> None:
    low, high = start / 4, (start + length) / 4
    for part in breakdown(events, ISLANDS, low, high):
        assert tuple(part.seconds) == CAUSES
        assert min(part.seconds.values()) >= 0
        assert sum(part.seconds.values()) == pytest.approx(length / 4)
        of_island = events.select(events.is_("kind", *BUSY) & events.is_("island", part.island))
        cut = [
            Row(f, max(s, low), min(e, high))
            for s, e in zip(of_island["start"], of_island["end"], strict=True)
            if s < high and e > low
        ]
        assert part.seconds["busy"] == pytest.approx(covered(Events.from_rows(cut)))


@examples(80)
@given(records())
def test_idle_time_of_each_device_adds_up(events: Events) -> None:
    found, span = idle(events, ISLANDS), summarise(events, ISLANDS).makespan
    assert sum(part.devices for part in found.devices) == sum(ISLANDS)
    assert found.span == pytest.approx(span)
    for island, devices in enumerate(ISLANDS):
        of_island = events.select(events.is_("kind", *BUSY) & events.is_("island", island))
        for device, busy in enumerate(device_seconds(of_island, devices).tolist()):
            parts = found.of(island, device)
            assert min(parts.values()) >= 0
            assert sum(parts.values()) == pytest.approx(span)
            assert parts["busy"] == pytest.approx(busy)


@examples(100)
@given(schedules())
def test_the_time_before_an_event_is_divided_as_the_path_to_it_is(made: Made) -> None:
    events = made.events()
    found = idle(events, ISLANDS)
    for part in found.devices:
        here = events.is_("kind", "compute") & events.is_("island", part.island)
        here &= (events["device"] <= part.first) & (part.first < events["device"] + events["devices"])
        expected, free = dict.fromkeys(CAUSES, 0.0), 0.0
        for row in np.flatnonzero(here).tolist():
            for segment in path_to(events, row).segments:
                cause = "dependency" if segment.cause == "compute" else segment.cause
                cause = "warm-up" if cause == "dependency" and not free else cause
                expected[cause] += max(min(segment.end, events["start"][row]) - max(segment.start, free), 0.0)
            expected["busy"] += events["end"][row] - events["start"][row]
            free = events["end"][row]
        expected["drain" if free else "other"] += found.span - free
        assert part.seconds == pytest.approx(expected)


def path_to(events: Events, row: int) -> CriticalPath:
    """The critical path, had everything ended with this event."""
    rows = []
    for one in range(len(events)):
        if events["start"][one] <= events["start"][row]:
            end = 1000.0 if one == row else events["end"][one]
            rows.append(Row(events.labels[events.label[one]], events["start"][one], end, 0))
    return critical_path(Events.from_rows(rows))


@examples(100)
@given(records(), st.lists(st.integers(0, 80), min_size=2, max_size=12, unique=True))
def test_busy_time_is_the_same_however_it_is_cut(events: Events, cuts: list[int]) -> None:
    for island in (0, 1):
        of_island = events.select(events.is_("kind", "compute", "collective") & events.is_("island", island))
        total = device_seconds(of_island, 4).sum()
        times = np.array([-1.0, *sorted(cut / 4 for cut in cuts), 100.0])
        assert busy_between(of_island, 4, times).sum() == pytest.approx(total)
        by_device = [
            of_island.select((of_island["device"] <= d) & (d < of_island["device"] + of_island["devices"]))
            for d in range(4)
        ]
        assert total == pytest.approx(sum(map(covered, by_device)))
