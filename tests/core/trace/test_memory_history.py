"""Levels of memory: what each device held at any time, equal devices together, and the highest of all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.plan.memory_categories import CATEGORIES, in_order
from pathways_nb.results.chrome_trace import from_chrome
from pathways_nb.trace.memory_history import HighWaterMark, MemoryHistory, memory_of, peak_of
from pathways_nb.trace.record import COLUMNS, Events, Record
from pathways_nb.trace.rows import Label, Row
from tests.support.examples import examples

DEVICES, ISLANDS, CLIENTS, END = 6, 2, ("ann", "", "bob"), 12


def level(client: str, size: int, start: float, end: float, first: int = 0, count: int = 4, island: int = 0) -> Row:
    """A client holds ``size`` bytes on each of some devices."""
    return Row(Label("memory", "memory", "", client, island=island, device=first, devices=count, bytes=size),
               start, end, quality="exact")  # fmt: skip


def test_levels_are_stacked_by_client_and_hold_until_the_next() -> None:
    rows = [level("ann", 5, 0, 2), level("bob", 7, 1, 4), level("ann", 3, 2, 3), level("ann", 9, 6, 7)]
    (held,) = memory_of(Events.from_rows(rows))
    assert (held.island, held.devices, held.names) == (0, ((0, 4),), ("ann", "bob"))
    assert held.times.tolist() == [0, 1, 2, 3, 4, 6, 7]
    assert held.levels.tolist() == [[5, 0], [5, 7], [3, 7], [0, 7], [0, 0], [9, 0], [0, 0]]
    assert held.peak == HighWaterMark(0, 0, 12, 1.0, 2.0, {"ann": 5, "bob": 7})


def test_devices_that_are_divided_later_and_stay_alike_are_one() -> None:
    rows = [level("ann", 5, 0, 2), level("ann", 8, 2, 3, 0, 2), level("ann", 8, 2, 3, 2, 2)]
    (held,) = memory_of(Events.from_rows(rows))
    assert held.devices == ((0, 4),)
    assert held.levels.tolist() == [[5], [8], [0]]


def test_a_level_cut_in_two_is_the_same_history() -> None:
    rows = [level("ann", 5, 0, 2, 0, 1), level("ann", 5, 0, 1, 3, 1), level("ann", 5, 1, 2, 3, 1)]
    rows.append(level("ann", 1, 0, 2, 1, 2))
    outer, inner = memory_of(Events.from_rows(rows))
    assert (outer.devices, inner.devices) == (((0, 1), (3, 4)), ((1, 3),))
    assert outer.times.tolist() == [0, 2]


def test_nothing_held_is_nothing_and_other_kinds_do_not_count() -> None:
    assert memory_of(Events.from_rows([])) == []
    other = Row(Label("compute", "f", island=0, devices=4, bytes=100), 0, 1)
    assert memory_of(Events.from_rows([other, level("ann", 0, 0, 1), level("ann", 5, 1, 1)])) == []
    assert peak_of(Events.from_rows([other])) is None


def test_the_peak_is_that_of_the_fullest_device_of_all_islands() -> None:
    rows = [level("ann", 5, 0, 2), level("bob", 9, 3, 4, 1, 1, island=1), level("ann", 9, 5, 6)]
    assert peak_of(Events.from_rows(rows)) == HighWaterMark(0, 0, 9, 5.0, 6.0, {"ann": 9})
    assert peak_of(Events.from_rows(rows[:2])) == HighWaterMark(1, 1, 9, 3.0, 4.0, {"bob": 9})


def test_thousands_of_equal_devices_are_one_row() -> None:
    rows = [level("ann", 5 + i % 3, i, i + 1, 0, 4096) for i in range(100)]
    (held,) = memory_of(Events.from_rows(rows))
    assert held.devices == ((0, 4096),)
    assert len(held.times) == 101


def test_events_without_a_kind_are_the_same_where_there_are_none() -> None:
    events = Events.from_rows([Row(Label("compute", "f"), 0, 1), level("ann", 5, 0, 2)])
    assert events.without({"memory"})["kind"].tolist() == ["compute"]
    assert events.without({"stall"}) is events


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Levels that never overlap for one island, device and client, on ranges of any kind."""
    rows = []
    for island in range(ISLANDS):
        for client in CLIENTS:
            edges = sorted(draw(st.sets(st.integers(0, END), max_size=5)))
            for start, end in zip(edges, edges[1:], strict=False):
                cuts = [0, *sorted(draw(st.sets(st.integers(1, DEVICES - 1), max_size=2))), DEVICES]
                for low, high in zip(cuts, cuts[1:], strict=False):
                    size = draw(st.sampled_from([0, 1, 2, 1 << 40]))
                    if size:
                        rows.append(level(client, size, start, end, low, high - low, island))
    return draw(st.permutations(rows))


@examples(150)
@given(histories())
def test_every_device_holds_what_its_rows_add_up_to(rows: list[Row]) -> None:
    found = memory_of(Events.from_rows(rows))
    brute = np.zeros((ISLANDS, DEVICES, END, len(CLIENTS)), np.int64)
    for row in rows:
        label = row.label
        devices = slice(label.device, label.device + label.devices)
        brute[label.island, devices, int(row.start) : int(row.end), CLIENTS.index(label.client)] += label.bytes
    seen = np.zeros_like(brute)
    for held in found:
        assert (np.diff(held.times) > 0).all()
        assert not held.levels[-1].any()
        for low, high in held.devices:
            assert not seen[held.island, low:high].any(), "a device is in one row only"
            seen[held.island, low:high] += sampled(held)
    np.testing.assert_array_equal(seen, brute)
    for island in range(ISLANDS):
        of_island = [held for held in found if held.island == island]
        assert len({sampled(held).tobytes() for held in of_island}) == len(of_island), "equal devices are together"
    top = peak_of(Events.from_rows(rows))
    assert (top.bytes if top else 0) == brute.sum(3).max()
    if top:
        at = int(top.start)
        assert brute[top.island, top.device, at].sum() == top.bytes == sum(top.by_name.values())


def sampled(held: MemoryHistory) -> np.ndarray:
    """Levels at 0, 1, 2 … by client of ``CLIENTS``."""
    table = np.zeros((END, len(CLIENTS)), np.int64)
    for at in range(END):
        step = int(np.searchsorted(held.times, at, "right")) - 1
        for client, size in zip(held.names, held.levels[step].tolist() if step >= 0 else (), strict=False):
            table[at, CLIENTS.index(client)] = size
    return table


@st.composite
def divided_levels(draw: st.DrawFn) -> list[Row]:
    """Levels of which each is cut into categories, some of which an older file would not name."""
    rows = []
    for row in draw(histories()):
        names = draw(st.lists(st.sampled_from(["", *CATEGORIES]), min_size=1, max_size=3, unique=True))
        left = row.label.bytes
        for name in names[1:]:
            size = draw(st.integers(0, left))
            left -= size
            rows.append(row._replace(label=replace(row.label, bytes=size, category=name)))
        rows.append(row._replace(label=replace(row.label, bytes=left, category=names[0])))
    return rows


@examples(100)
@given(divided_levels())
def test_categories_add_up_to_what_clients_hold_on_every_device_at_every_time(rows: list[Row]) -> None:
    events = Events.from_rows(rows)
    sums = {}
    for by in ("client", "category"):
        sums[by] = np.zeros((ISLANDS, DEVICES, END), np.int64)
        for held in memory_of(events, by):  # type: ignore[arg-type]
            steps = np.searchsorted(held.times, np.arange(END), "right") - 1
            for low, high in held.devices:
                sums[by][held.island, low:high] += np.where(steps >= 0, held.total[steps], 0)
            if by == "category":
                assert list(held.names) == in_order(held.names)
    np.testing.assert_array_equal(sums["client"], sums["category"])
    peaks = [max((held.peak.bytes for held in memory_of(events, by)), default=0) for by in ("client", "category")]  # type: ignore[arg-type]
    assert peaks[0] == peaks[1]


def test_a_run_divides_its_memory_by_client_or_by_category(tmp_path: Path) -> None:
    row = level("ann", 5, 0, 2)
    rows = [row._replace(label=replace(row.label, category="temporaries")),
            row._replace(label=replace(row.label, bytes=3, category="parameters"))]  # fmt: skip
    run = pw.Run("mine", (4, 4), Record.of(Events.from_rows(rows)), finished=True)
    assert [held.levels.tolist() for held in run.memory()] == [[[8], [0]]]
    run.save(tmp_path / "a.run")
    for each in (run, pw.load(tmp_path / "a.run")):
        (held,) = each.memory(by="category")
        assert (held.names, held.levels.tolist()) == (("parameters", "temporaries"), [[3, 5], [0, 0]])
        assert held.peak.by_name == {"parameters": 3, "temporaries": 5}
    with pytest.raises(pw.UsageError, match=r"memory\(by='kind'\): choose from 'client', 'category'\."):
        run.memory(by="kind")  # type: ignore[arg-type]


@pytest.mark.parametrize("devices", [1, 1000])
def test_a_hundred_thousand_levels_add_up(devices: int) -> None:
    each = 100_000 // devices
    labels = [Label("memory", "memory", island=0, device=d, devices=1, bytes=d + 1) for d in range(devices)]
    record = Record()
    for label in labels:
        for step in range(0, each, 2):
            record.add(Row(label, step, step + 1))
            record.add(Row(label, step + 1, step + 1.5))
    found = memory_of(record.events())
    assert sum(high - low for held in found for low, high in held.devices) == devices
    assert [held.peak.bytes for held in found] == list(range(1, devices + 1))
    assert all(len(held.times) == each for held in found)


def recorded(hbm: tuple[int, ...] | None = (16_000_000, 0)) -> pw.Run:
    """A run of two islands with levels of two clients, and one computation."""
    rows = [
        level("ann", 4_000_000, 0, 2),
        Row(Label("compute", "f", island=0, devices=4), 0.5, 1.5, 0, "exact"),
        level("", 8_000_000, 1, 3, 2, 2),
        level("bob", 1_000, 1, 2, 0, 4, 1),
    ]
    about = {} if hbm is None else {"hbm": hbm}
    return pw.Run("mine", (4, 4), Record.of(Events.from_rows(rows)), finished=True, about=about)


def test_the_summary_says_the_peak_of_how_much() -> None:
    assert "peak memory 12 MB of 16 MB per device (island 0)" in recorded().summary_line()
    assert "peak memory 12 MB per device (island 0)" in recorded(None).summary_line()
    assert recorded(None).hbm == (0, 0)
    assert "memory" not in pw.Run("empty", (4,)).summary_line()


def test_a_saved_run_keeps_levels_and_budgets(tmp_path: Path) -> None:
    recorded().save(tmp_path / "a.run")
    again = pw.load(tmp_path / "a.run")
    assert again.hbm == (16_000_000, 0)
    assert peak_of(again.events) == peak_of(recorded().events)
    assert again.summary_line() == recorded().summary_line()


@pytest.mark.parametrize(
    ("hbm", "reason"),
    [
        ((1,), r"about\.hbm is \[1\], not a list of 2 values"),
        (("much", 1), r"about\.hbm\[0\] is 'much', not a whole number from 0 to \d+"),
        ((1, 2, 3), r"about\.hbm is \[1, 2, 3\], not a list of 2 values"),
        (5, r"about\.hbm is 5, not a list of 2 values"),
    ],
)
def test_a_file_with_other_budgets_than_islands_is_refused(tmp_path: Path, hbm: Any, reason: str) -> None:
    recorded(hbm).save(tmp_path / "a.run")
    with pytest.raises(pw.UsageError, match=rf"it is damaged: {reason}\.$"):
        pw.load(tmp_path / "a.run")


def test_a_comparison_puts_the_levels_of_both_on_one_axis() -> None:
    both = pw.compare(recorded(), recorded(None))
    assert both.hbm == (16_000_000, 0, 0, 0)
    found = memory_of(both.events)
    assert [held.island for held in found] == [0, 0, 1, 2, 2, 3]
    assert found[0].times.tolist() == [-0.5, 1.5], "counted from the first dispatch"
    assert len(both.difference) == 1, "levels are not matched"


def test_a_chrome_trace_has_a_counter_for_devices_with_the_same_memory(tmp_path: Path) -> None:
    run = recorded()
    run.to_chrome(tmp_path / "trace.json")
    rows = [row for row in json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"] if row["ph"] == "C"]
    found: dict[tuple[int, str], list[tuple[float, dict[str, float]]]] = {}
    for row in rows:
        found.setdefault((row["pid"], row["name"]), []).append((row["ts"], row["args"]))
    assert found[2000, "memory of dev 2–3: ann"] == [
        (0.0, {"bytes": 4_000_000}), (1e6, {"bytes": 4_000_000}), (2e6, {"bytes": 0}), (3e6, {"bytes": 0})
    ]  # fmt: skip
    again = from_chrome(tmp_path / "trace.json")
    for name in COLUMNS:
        assert again[name].tolist() == run.events[name].tolist(), name
