"""What crosses between two sets of devices, checked element by element on layouts of meshes of any shape."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from pathways_nb.plan.graph import Value
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.lowering.pieces import Located, Shards, bytes_crossing, elements_crossing, pieces, volume

MESHES = [(1,), (2,), (3,), (4,), (2, 2), (2, 3), (4, 1), (1, 2, 2)]
SHAPES = [(), (12,), (5,), (0,), (12, 12), (7, 12), (5, 3), (0, 4)]


def layouts(mesh: AbstractMesh, rank: int) -> list[PartitionSpec]:
    """Every layout of an array over a mesh."""
    names = mesh.axis_names
    chosen = [axes for n in range(len(names) + 1) for axes in itertools.permutations(names, n)]
    rows = itertools.product(chosen, repeat=rank)
    once = [parts for parts in rows if len(axes := sum(parts, ())) == len(set(axes))]
    return [PartitionSpec(*(part or None for part in parts)) for parts in once]


@st.composite
def shards(draw: st.DrawFn, shape: tuple[int, ...]) -> Shards:
    sizes = draw(st.sampled_from(MESHES))
    mesh = AbstractMesh(sizes, tuple("abc"[: len(sizes)]), axis_types=(AxisType.Auto,) * len(sizes))
    first = draw(st.integers(0, 3))
    sharding = NamedSharding(mesh, draw(st.sampled_from(layouts(mesh, len(shape)))))
    return Shards.of(sharding, shape, range(first, first + mesh.size))


both = st.sampled_from(SHAPES).flatmap(lambda shape: st.tuples(st.just(shape), shards(shape), shards(shape)))


def inside(box) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in box)


@given(both)
def test_each_target_shard_is_covered_exactly_once(case) -> None:
    shape, source, target = case
    seen = [np.zeros(shape, int) for _ in target.devices]
    for at, to, box in pieces(source, target):
        seen[to][inside(box)] += 1
        assert all(a <= low <= high <= b for (a, b), (low, high) in zip(source.box(at), box, strict=True))
    for to, count in enumerate(seen):
        wanted = np.zeros(shape, int)
        wanted[inside(target.box(to))] = 1
        np.testing.assert_array_equal(count, wanted)


@given(both)
def test_nothing_is_sent_that_a_device_has(case) -> None:
    shape, source, target = case
    sent = 0
    for at, to, box in pieces(source, target):
        own = source.devices.index(target.devices[to]) if target.devices[to] in source.devices else None
        if own == at:
            continue
        sent += volume(box)
        if own is not None:
            had = np.zeros(shape, bool)
            had[inside(source.box(own))] = True
            assert not had[inside(box)].any()
    assert sent == elements_crossing(source, target)
    assert sent <= elements_crossing(None, target) == sum(volume(target.box(to)) for to in range(len(target.devices)))


@given(both)
def test_pieces_of_a_shard_are_a_grid_in_row_major_order(case) -> None:
    _, source, target = case
    for to in range(len(target.devices)):
        corners = [tuple(low for low, _ in box) for _, other, box in pieces(source, target) if other == to]
        assert corners == list(itertools.product(*(sorted(set(column)) for column in zip(*corners, strict=True))))


@given(both)
def test_devices_that_hold_the_same_send_alike(case) -> None:
    """The loads of replicas differ by one piece at most."""
    _, source, target = case
    target = Shards([device + 100 for device in target.devices], target.low, target.high)
    sent, largest = Counter(), 0
    for at, _, box in pieces(source, target):
        sent[at] += volume(box)
        largest = max(largest, volume(box))
    replicas = {}
    for at in range(len(source.devices)):
        replicas.setdefault(source.box(at), []).append(sent[at])
    assert all(max(loads) - min(loads) <= largest for loads in replicas.values())


def on(count: int, spec: PartitionSpec, island: int = 0, first: int = 0) -> Located:
    mesh = AbstractMesh((count,), ("x",), axis_types=(AxisType.Auto,))
    return Located(NamedSharding(mesh, spec), Placement(island, first, count))


def test_bytes_that_cross() -> None:
    value, rows, whole = Value(0, (8, 4), "float32", 128), PartitionSpec("x"), PartitionSpec()
    assert bytes_crossing(value, on(2, rows, 1), on(4, rows)) == 128
    assert bytes_crossing(value, on(2, whole, 1), on(4, rows)) == 256
    assert bytes_crossing(value, on(2, rows), on(4, rows)) == 32 + 64  # the first has half of its shard
    assert bytes_crossing(value, on(2, rows), on(4, whole)) == 0
    assert bytes_crossing(value, on(4, rows), None) == 128


def test_devices_of_a_host_share_what_reaches_it() -> None:
    value, whole = Value(0, (8, 4), "float32", 128), PartitionSpec()
    assert bytes_crossing(value, on(8, whole, 1), None, 4) == 256
    assert bytes_crossing(value, on(8, whole, 1, first=2), None, 4) == 384
    assert bytes_crossing(value, on(8, PartitionSpec("x"), 1), None, 4) == 128
