"""What hosts of two islands send each other: ranges against plain NumPy slices, and values on their way."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from pathways_nb.errors import LostError, PathwaysError
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.hosts.arrivals import Arrivals, parts_of, senders
from pathways_nb.runtime.hosts.crossings import cuts, host_of, part
from pathways_nb.runtime.hosts.messages import Parcel
from pathways_nb.runtime.hosts.reports import (
    HostRow,
    OtherRow,
    RangeEnded,
    Reports,
    RunRecord,
    StepEnded,
    StepRows,
    narrowed,
)
from pathways_nb.runtime.lowering.pieces import Located, volume
from pathways_nb.trace.rows import Row, label_of
from tests.core.runtime.test_pieces import MESHES, SHAPES, inside, layouts


@st.composite
def located(draw: st.DrawFn, shape: tuple[int, ...], island: int) -> Located:
    """A layout of an array on some of an island's devices."""
    sizes = draw(st.sampled_from(MESHES))
    mesh = AbstractMesh(sizes, tuple("abc"[: len(sizes)]), axis_types=(AxisType.Auto,) * len(sizes))
    sharding = NamedSharding(mesh, draw(st.sampled_from(layouts(mesh, len(shape)))))
    return Located(sharding, Placement(island, draw(st.integers(0, 3)), mesh.size))


@st.composite
def crossings(draw: st.DrawFn, same_island: bool = False) -> tuple[Located, Located, tuple[int, ...], int, int]:
    """What ``cuts`` takes: two layouts, a shape, and the devices of each host at both ends."""
    shape = draw(st.sampled_from(SHAPES))
    sends = draw(st.integers(1, 4))
    takes = sends if same_island else draw(st.integers(1, 4))
    return draw(located(shape, 0)), draw(located(shape, 0 if same_island else 1)), shape, sends, takes


def carried(case) -> dict[int, np.ndarray]:
    """Return the values that each target host has after sender and receiver did their part, as hosts do it."""
    source, target, shape, _, takes = case
    values, boxes = np.arange(np.prod(shape, dtype=int)).reshape(shape), source.shards(shape)
    routes, found = cuts(*case), {}
    for to in {host_of(target.where, at, takes) for at in range(target.where.count)}:
        parcels = []
        for host in sorted(senders(routes, to)):
            sent = [part(values[inside(boxes.box(c.source))], boxes.box(c.source), c.box) for c in routes[host, to]]
            parcels.append(Parcel(1, 2, host, tuple(sent)))
        found[to] = np.full(shape, -1)
        for box, array in parts_of(parcels, routes, to):
            found[to][inside(box)] = array
    return found


@pytest.mark.parametrize("same_island", [False, True])
def test_each_device_gets_the_values_that_it_needs(same_island: bool) -> None:
    @given(crossings(same_island))
    def check(case) -> None:
        _, target, shape, _, takes = case
        whole, wanted, have = np.arange(np.prod(shape, dtype=int)).reshape(shape), target.shards(shape), carried(case)
        for at in range(target.where.count):
            box = inside(wanted.box(at))
            np.testing.assert_array_equal(have[host_of(target.where, at, takes)][box], whole[box])

    check()


@given(crossings())
def test_each_range_goes_to_a_host_once_and_no_other(case) -> None:
    _, target, shape, _, takes = case
    wanted, seen = target.shards(shape), {}
    for (_, to), found in cuts(*case).items():
        for cut in found:
            seen.setdefault(to, np.zeros(shape, int))[inside(cut.box)] += 1
    for to, count in seen.items():
        needed = np.zeros(shape, int)
        for at in range(target.where.count):
            if host_of(target.where, at, takes) == to:
                needed[inside(wanted.box(at))] = 1
        np.testing.assert_array_equal(count, needed)


@given(crossings())
def test_the_source_device_holds_it_and_the_targets_need_it(case) -> None:
    source, target, shape, sends, takes = case
    have, want, reached = source.shards(shape), target.shards(shape), Counter()
    for (host, to), found in cuts(*case).items():
        for cut in found:
            assert host_of(source.where, cut.source, sends) == host
            assert all(a <= c <= d <= b for (a, b), (c, d) in zip(have.box(cut.source), cut.box, strict=True))
            for at in cut.targets:
                assert host_of(target.where, at, takes) == to
                assert all(a <= c <= d <= b for (a, b), (c, d) in zip(want.box(at), cut.box, strict=True))
                reached[at] += volume(cut.box)
    assert all(reached[at] == volume(want.box(at)) for at in range(target.where.count))


@given(crossings())
def test_every_host_with_a_device_of_the_target_has_a_sender(case) -> None:
    """A host that nobody sends to would wait for nothing: an empty array has a piece, too."""
    _, target, _, _, takes = case
    routes = cuts(*case)
    assert all(senders(routes, host_of(target.where, at, takes)) for at in range(target.where.count))


@given(crossings())
def test_bytes_of_the_routes(case) -> None:
    _, target, shape, _, takes = case
    wanted = target.shards(shape)
    by_host = {(host_of(target.where, at, takes), wanted.box(at)) for at in range(target.where.count)}
    carried = sum(volume(cut.box) for found in cuts(*case).values() for cut in found)
    assert carried == sum(volume(box) for _, box in by_host)


# ---- arrivals

HERE, RUN = (1, 0), (7, 3)
"""Island 1 in its first life, which sends; a run and a step."""


class Heard:
    """What ``Arrivals`` called back with."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], PathwaysError | None]] = []

    def __call__(self, parcels: list[Parcel], error: PathwaysError | None) -> None:
        self.calls.append(([parcel.host for parcel in parcels], error))

    @property
    def only(self) -> tuple[list[int], PathwaysError | None]:
        (call,) = self.calls
        return call


def parcel(host: int, key: tuple[int, int] = RUN, error: PathwaysError | None = None) -> Parcel:
    return Parcel(*key, host, (np.zeros(1),), error=error)


@given(st.permutations(["expect", 0, 1, 2]))
def test_an_arrival_ends_once_in_whatever_order_things_come(order) -> None:
    arrivals, heard = Arrivals(), Heard()
    for number, what in enumerate(order):
        assert not heard.calls, f"after {order[:number]}"
        if what == "expect":
            arrivals.expect(RUN, HERE, frozenset({0, 1, 2}), heard)
        else:
            arrivals.receive(parcel(what))
    assert heard.only == ([0, 1, 2], None)
    assert not arrivals._coming


@given(st.permutations(["expect", 0, "lose"]))
def test_senders_that_died_end_it_in_whatever_order(order) -> None:
    """What came whole before the loss may be used."""
    arrivals, heard = Arrivals(), Heard()
    for what in order:
        if what == "expect":
            arrivals.expect(RUN, HERE, frozenset({0, 1}), heard)
        elif what == "lose":
            arrivals.lose(1, 0, "island 1 lost host b")
        else:
            arrivals.receive(parcel(what))
    parcels, error = heard.only
    assert not parcels
    assert isinstance(error, LostError)
    assert str(error) == "island 1 lost host b"


def test_a_whole_arrival_survives_the_loss_of_its_senders() -> None:
    arrivals, heard = Arrivals(), Heard()
    arrivals.receive(parcel(0))
    arrivals.lose(1, 0, "island 1 lost host b")
    arrivals.expect(RUN, HERE, frozenset({0}), heard)
    assert heard.only == ([0], None)


def test_the_next_life_of_an_island_sends_again() -> None:
    arrivals, old, new, other = Arrivals(), Heard(), Heard(), Heard()
    arrivals.lose(1, 0, "island 1 lost host b")
    arrivals.expect(RUN, (1, 0), frozenset({0}), old)
    arrivals.expect((8, 3), (1, 1), frozenset({0}), new)
    arrivals.expect((9, 3), (2, 0), frozenset({0}), other)
    assert isinstance(old.only[1], LostError)
    arrivals.receive(parcel(0, (8, 3)))
    arrivals.receive(parcel(0, (9, 3)))
    assert new.only == other.only == ([0], None)


def test_an_error_in_one_parcel_ends_it_at_once() -> None:
    arrivals, heard, error = Arrivals(), Heard(), PathwaysError("f failed")
    arrivals.expect(RUN, HERE, frozenset({0, 1}), heard)
    arrivals.receive(parcel(1, error=error))
    assert heard.only == ([], error)


@given(st.permutations([0, 1]))
def test_an_error_of_one_sender_is_heard_whoever_is_first(order) -> None:
    arrivals, heard, error = Arrivals(), Heard(), PathwaysError("f failed")
    for host in order:
        arrivals.receive(parcel(host, error=error if host else None))
    arrivals.expect(RUN, HERE, frozenset({0, 1}), heard)
    assert heard.only[1] is error


def test_parcels_that_nobody_expects_are_forgotten_with_their_run() -> None:
    arrivals, other = Arrivals(), Heard()
    arrivals.expect((8, 3), HERE, frozenset({0}), other)
    arrivals.receive(parcel(0, (7, 4)))
    arrivals.forget(7)
    assert list(arrivals._coming) == [(8, 3)]
    assert not other.calls


# ---- reports


def test_reports_are_taken_in_order_and_once() -> None:
    reports, made = Reports(), [StepEnded(1, 0), RangeEnded(1, 0, 1, 0.5)]
    for report in made:
        reports.add(report)
    assert reports.collect(0) == made
    assert reports.collect(0) == []


def test_quiet_reports_go_with_the_next_one() -> None:
    reports, row = Reports(), HostRow(1, "enqueue", 0.0, 1.0, 0)
    reports.quietly(row)
    reports.add(RangeEnded(1, 0, 1, 0.5))
    assert reports.collect(0) == [row, RangeEnded(1, 0, 1, 0.5)]


def test_reset_forgets_reports() -> None:
    reports = Reports()
    reports.add(StepEnded(1, 0))
    reports.reset()
    assert reports.collect(0) == []


def test_a_run_reports_steps_by_number_and_other_events_whole() -> None:
    reports, wide = Reports(), label_of("compute", "f", "p", device=1, devices=6)
    record = RunRecord(reports, 5, {id(wide): 2}, (4, 4))
    record.add(Row(wide, 1.0, 2.0, 5, "exact"))
    other = Row(label_of("stall", "p waits", "p"), 0.0, 1.0, 5, "exact")
    record.add(other)
    record.add(Row(wide, 2.0, 3.0, 5, "interpolated"))
    record.add(Row(wide, 3.0, 4.0, 5))
    first, *more = [
        (2, 1.0 + at, 2.0 + at, quality, "ok", 4, 3, "", 0, -1)
        for at, quality in enumerate(("exact", "interpolated", "estimated"))
    ]
    assert reports.collect(0) == [StepRows(5, [first]), OtherRow(5, other), StepRows(5, more)]


@given(st.integers(0, 9), st.integers(1, 9), st.integers(1, 4))
def test_hosts_share_the_devices_of_a_label(first: int, count: int, per_host: int) -> None:
    label, devices = label_of("compute", "f", "p", device=first, devices=count), []
    for host in range(20 // per_host):
        begin, many = narrowed(label, host * per_host, per_host)
        devices += range(begin, begin + many)
    assert devices == list(range(first, first + count))
