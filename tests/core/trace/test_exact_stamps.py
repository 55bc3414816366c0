"""Exact stamps: what a profiler tells, matched launch by launch."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.program.emit import module_of
from pathways_nb.runtime.local.profiler import Profiler
from pathways_nb.trace.exact_stamps import Span, Stamps, make_exact, matched
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Label, Row
from pathways_widgets.timeline.timeline_view import Timeline

DEVICES = [[100, 101], [200, 201]]


def exact(record: Record, spans: list[Span]) -> Stamps:
    return make_exact(record, matched(record, spans, DEVICES, module_of))


def launches(*rows: tuple[str, int, int, int]) -> Record:
    """A record of launches (name, island, first device, devices), each said to last from its number to the next."""
    record = Record()
    for number, (name, island, device, devices) in enumerate(rows):
        record.add(Row(Label("compute", name, island=island, device=device, devices=devices), number, number + 1.0))
    return record


def seen(name: str, device: int, start: float, end: float) -> Span:
    """What a profiler says of a node."""
    return Span(device, module_of(name), start, end)


def test_a_launch_on_two_devices_lasts_from_its_first_to_its_last() -> None:
    record = launches(("f", 0, 0, 2))
    stamps = exact(record, [seen("f", 100, 0.2, 0.5), seen("f", 101, 0.3, 0.9)])
    (event,) = record.events()
    assert (event["start"], event["end"], event["quality"]) == (0.2, 0.9, "exact")
    assert (stamps.launches, stamps.matched) == (1, 1)
    assert stamps.start[0] == pytest.approx(0.2)
    assert stamps.end[0] == pytest.approx(0.1)
    assert "exact stamps for 1 of 1 launches; estimated ends were off by 100 ms" in str(stamps)


def test_launches_of_one_name_on_other_devices_are_told_apart() -> None:
    record = launches(("f", 0, 0, 1), ("f", 0, 1, 1), ("f", 0, 0, 2), ("f", 1, 0, 1))
    spans = [
        seen("f", 200, 4.0, 4.5), seen("f", 101, 2.0, 2.5), seen("f", 100, 1.0, 1.5),
        seen("f", 100, 3.0, 3.4), seen("f", 101, 3.1, 3.5),
    ]  # fmt: skip
    assert exact(record, spans).matched == 4
    assert record.events()["start"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_launch_is_matched_on_all_of_its_devices_or_not_at_all() -> None:
    record = launches(("f", 0, 0, 2), ("f", 0, 0, 1), ("f", 1, 0, 1))
    spans = [seen("f", 101, 0.1, 0.9), seen("f", 100, 1.1, 1.9), seen("f", 200, 2.1, 2.9)]  # one is lost on 100
    assert exact(record, spans).matched == 1
    assert record.events()["quality"].tolist() == ["estimated", "estimated", "exact"]


def test_where_counts_differ_nothing_is_guessed() -> None:
    record = launches(("f", 0, 0, 1), ("f", 0, 0, 1), ("g", 0, 0, 1))
    stamps = exact(record, [seen("f", 100, 0.5, 0.6), seen("g", 100, 2.5, 2.6)])
    assert (stamps.launches, stamps.matched) == (3, 1)
    assert record.events()["quality"].tolist() == ["estimated", "estimated", "exact"]
    assert record.events()["start"].tolist() == [0.0, 1.0, 2.5]


def test_nothing_seen_is_said() -> None:
    text = str(exact(launches(("f", 0, 0, 1)), []))
    assert text == "exact stamps for none of 1 launches: the profiler did not tell them apart"


@given(st.lists(st.sampled_from(["f", "g", "h (bwd)"]), min_size=1, max_size=20), st.randoms())
def test_the_nth_is_the_nth_whatever_order_the_profiler_tells_them_in(names, random) -> None:
    record = launches(*((name, 0, 0, 2) for name in names))
    spans = [seen(n, 100 + d, i + 0.25, i + 0.75) for i, n in enumerate(names) for d in (0, 1)]
    random.shuffle(spans)
    assert exact(record, spans).matched == len(names)
    np.testing.assert_array_equal(record.events()["start"], np.arange(len(names)) + 0.25)


def test_a_transfer_is_over_when_the_launch_that_needs_it_begins() -> None:
    """What was seen late is not drawn beyond it; what was over before stays, and no stamp of it is called exact."""
    record = Record()
    for name, node, start, end in (("late", 1, 0.0, 5.0), ("early", 2, 0.0, 1.0)):
        record.add(Row(Label("transfer", name, island=0, node=node), start, end, run=3))
    for node in (1, 2):
        label = Label("compute", f"f{node}", island=0, device=0, devices=1, node=node)
        record.add(Row(label, 5.0, 6.0, run=3))
    exact(record, [seen("f1", 100, 3.0, 4.0), seen("f2", 100, 4.0, 5.0)])
    moved = record.events().of_kind("transfer")
    assert moved["start"].tolist() == [0.0, 0.0]
    assert moved["end"].tolist() == [3.0, 1.0]
    assert set(moved["quality"].tolist()) == {"estimated"}


def test_columns_given_out_before_stay_as_they_were() -> None:
    record = launches(("f", 0, 0, 1))
    before = record.events()
    exact(record, [seen("f", 100, 0.5, 0.6)])
    assert not set(before["id"]) & set(record.events()["id"]), "whoever drew them must draw them again"
    assert before["start"].tolist() == [0.0]
    assert before["quality"].tolist() == ["estimated"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("f", "f"), ("<lambda>", "lambda"), ("f (bwd)", "f_bwd"), ("größe, 2", "gr_e_2"), ("→", "node")],
)
def test_names_of_modules_are_plain(name, expected) -> None:
    assert module_of(name) == f"jit_pw_{expected}"


def test_a_figure_that_had_drawn_the_estimates_draws_the_exact_stamps() -> None:
    record = launches(("f", 0, 0, 2))
    run = pw.Run("r", (2,), record, finished=True)
    view = Timeline((2,))
    assert view.update(run)["timeline_boxes"]["left"].tolist() == [0.0]
    exact(record, [seen("f", 100, 0.2, 0.5), seen("f", 101, 0.3, 0.9)])
    assert view.update(run)["timeline_boxes"]["left"].tolist() == [0.2]


class FakeEvent:
    def __init__(self, name, start_ns, duration_ns, **stats):
        self.name, self.start_ns, self.duration_ns, self.stats = name, start_ns, duration_ns, stats.items()


class FakeLine:
    def __init__(self, name, *events):
        self.name, self.events = name, events


class FakePlane:
    def __init__(self, name, *lines, **stats):
        self.name, self.lines, self.stats = name, lines, stats.items()


class FakeProfile:
    def __init__(self, *planes):
        self.planes = planes


def test_accelerators_modules_are_read_where_they_say_which_launch_they_are(monkeypatch) -> None:
    modules = FakeLine(
        "XLA Modules", FakeEvent("jit_pw_f(12)", 1e9, 5e8, run_id=3), FakeEvent("jit_pw_g(13)", 2e9, 5e8)
    )
    other = FakeLine(
        "XLA Ops",
        FakeEvent("fusion.1", 1e9, 1e8),
        FakeEvent("%all-gather.3 = f32[8]{0} all-gather(%p), replica_groups={}", 1.2e9, 3e8),
        FakeEvent("outside", 1.6e9, 1e8),
    )
    monkeypatch.setattr(time, "time_ns", lambda: 70_000_000_000)
    when = FakePlane("Task Environment", profile_start_time=60_000_000_000)
    read = Profiler(lambda: 15.0)._read
    (span,) = read(FakeProfile(FakePlane("/device:TPU:5", modules, other), when))
    assert (span.device, span.module) == (5, "jit_pw_f")
    assert span.end - span.start == pytest.approx(0.5)
    assert span.start == pytest.approx(15 - 10 + 1)
    assert [op.name for op in span.ops] == ["fusion.1", "all-gather.3"], "those that began while it ran"
    assert [op.end for op in span.ops] == pytest.approx([6.1, 6.5])
    assert list(read(FakeProfile(FakePlane("/device:TPU:5", modules)))) == [], "nobody knows when it began"
