"""Shardings drawn, against JAX's own index map, and of real and simulated results."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import pathways_nb as pw

MESHES = [(1,), (2,), (4,), (2, 2), (4, 2), (2, 2, 2), (8,)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], PartitionSpec, tuple[int, ...]]:
    """A shape that a spec divides, the spec, and the sizes of the mesh."""
    sizes = draw(st.sampled_from(MESHES))
    axes = draw(st.permutations("abc"[: len(sizes)]))
    rank = draw(st.integers(0, 5))
    entries: list[tuple[str, ...]] = [()] * rank
    for axis in axes:
        at = draw(st.integers(-1, rank - 1))
        if at >= 0:
            entries[at] = (*entries[at], axis)
    by = dict(zip("abc", sizes, strict=False))
    shape = tuple(math.prod(by[axis] for axis in entry) * draw(st.integers(1, 3)) for entry in entries)
    return shape, PartitionSpec(*(entry or None for entry in entries)), sizes


@pytest.fixture(scope="module")
def devices() -> Any:
    """Eight devices of one island."""
    with pw.attach("cpu", islands=1, devices_per_island=8) as controller:
        controller.driver  # noqa: B018
        yield controller.driver.attachment.islands[0].devices


@settings(max_examples=40)
@given(cases())
def test_blocks_are_those_of_jax(devices: Any, case: Any) -> None:
    shape, spec, sizes = case
    mesh = Mesh(np.array(devices[: math.prod(sizes)]).reshape(sizes), tuple("abc"[: len(sizes)]))
    sharding = NamedSharding(mesh, spec)
    expected = {device: tuple(part.indices(n)[:2] for part, n in zip(index, shape, strict=True))
                for device, index in sharding.devices_indices_map(shape).items()}  # fmt: skip
    for layout in (
        pw.show_sharding(shape, sharding),
        pw.show_sharding(shape, spec, mesh),
        pw.show_sharding(shape, spec, pw.virtual_slice(sizes, axes=mesh.axis_names)),
    ):
        assert isinstance(layout, pw.Layout)
        found = {mesh.devices.flat[at]: layout.blocks.box(block)
                 for block, held in layout.blocks.holders.items() for at in held}  # fmt: skip
        assert found == expected
        assert layout.block_shape == sharding.shard_shape(shape)


def test_a_future_shows_its_own_layout_without_waiting(left: pw.VirtualSlice, capsys: Any) -> None:
    y = pw.put(np.zeros((8, 4), np.float32), on=left, shardings=pw.P("x"))
    layout = pw.show_sharding(y)
    assert layout.heading == "float32[8,4], 128 B, as P('x') on left: x=4 (island 0, dev 0–3)"
    y.show()
    assert capsys.readouterr().out == f"{layout!r}\n"
    double = pw.jit(lambda v: v * 2, on=left, in_shardings=pw.P("x"), out_shardings=pw.P(None, "x"))
    assert "as P(None, 'x') on left: x=4" in repr(pw.show_sharding(double(y)))


def test_the_live_array_of_a_future_lies_on_the_same_devices(left: pw.VirtualSlice) -> None:
    y = pw.put(np.zeros((8, 4), np.float32), on=left, shardings=pw.P("x"))
    moved = pw.show_sharding(y.array(), to=pw.P("x"), to_place=left)
    assert isinstance(moved, pw.Reshard)
    assert moved.bytes_crossing == 0
    assert "(island 0, dev 0–3)" in moved.before.heading


def test_a_move_to_another_island_names_its_route(left: pw.VirtualSlice, right: pw.VirtualSlice) -> None:
    y = pw.put(np.zeros((8, 4), np.float32), on=left, shardings=pw.P("x"))
    pw.put(np.zeros(4), on=right).wait()
    moved = pw.show_sharding(y, to=pw.P(None, "x"), to_place=right)
    assert moved.heading == "128 B cross between devices, 0 B stay; sent in pieces over DCN"


def test_bytes_are_those_of_the_record(left: pw.VirtualSlice, controller: pw.Controller) -> None:
    small = pw.virtual_slice(2, island=1, name="small")
    sum_ = pw.jit(lambda v: v.sum(0), on=small, in_shardings=pw.P(None, "x"))
    y = pw.put(np.zeros((8, 4), np.float32), on=left, shardings=pw.P("x"))
    with pw.record() as run:
        sum_(y).wait()
    moved = pw.show_sharding(y, to=pw.P(None, "x"), to_place=small)
    assert isinstance(moved, pw.Reshard)
    events = run.events
    assert moved.bytes_crossing == events["bytes"][events["kind"] == "transfer"].sum() == 128


def test_an_edge_says_how_its_values_leave_and_arrive(left: pw.VirtualSlice) -> None:
    small = pw.virtual_slice(2, island=1, name="small")
    double = pw.jit(lambda v: v * 2, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    sum_ = pw.jit(lambda v: v.sum(0), on=small, in_shardings=pw.P(None, "x"), out_shardings=pw.P())
    both = pw.program(lambda v: sum_(double(v)), name="both")
    with pw.record() as run:
        both(np.zeros((8, 4), np.float32)).wait()
    assert run.programs[0].layouts == {
        (0, 1): "float32[8,4] as P('x') (blocks of 2 × 4) on left",
        (1, 2): "float32[8,4] as P('x') (blocks of 2 × 4) on left → P(None, 'x') (blocks of 8 × 2) on small",
        (2, 3): "float32[4] as P() on small",
    }


def test_a_key_a_scalar_and_a_single_device(left: pw.VirtualSlice) -> None:
    one = pw.virtual_slice(1, island=0, name="one")
    keys = pw.jit(lambda: jax.random.split(jax.random.key(0), 4), on=left, out_shardings=pw.P("x"))()
    assert pw.show_sharding(keys).block_shape == (1,)
    assert pw.show_sharding(pw.jit(lambda: 1.0, on=left)()).copies == 4
    assert pw.show_sharding(pw.jit(lambda v: v + 1, on=one)(np.zeros(3))).bytes_per_device == 12


def test_a_donated_future_says_why(left: pw.VirtualSlice) -> None:
    take = pw.jit(lambda v: v * 2, on=left, donate_argnums=0)
    y = pw.put(np.zeros(4, np.float32), on=left)
    take(y)
    with pytest.raises(pw.LostError, match="was donated at"):
        y.show()


def test_an_array_without_axes_needs_a_place(left: pw.VirtualSlice) -> None:
    plain = jax.numpy.zeros(4)
    assert pw.show_sharding(plain).heading.startswith("float32[4], 16 B, as SingleDeviceSharding on 1 device")
    with pytest.raises(pw.UsageError, match=r"the array has no axes .*Write to_place=\."):
        pw.show_sharding(plain, to=pw.P())
    with pytest.raises(pw.UsageError, match=r"the array has no spec to keep .*Write to=\."):
        pw.show_sharding(plain, to_place=left)
    assert pw.show_sharding(plain, to=pw.P("x"), to_place=left).bytes_crossing == 16


@pytest.mark.parametrize("padded", [5, 8])
def test_uneven_parts_are_refused_by_jax_and_drawn_here(left: pw.VirtualSlice, padded: int) -> None:
    refused = padded % 4 != 0
    layout = pw.show_sharding((padded,), pw.P("x"), left)
    assert layout.blocks.is_even is not refused
    if refused:
        with pytest.raises(pw.ShardingError, match="not divisible"):
            pw.put(np.zeros(padded), on=left, shardings=pw.P("x"))


def test_thousands_of_simulated_devices() -> None:
    with pw.attach("sim", chip="tpu_v3", islands=2, devices_per_island=2048):
        place = pw.virtual_slice((32, 64), axes=("data", "model"), name="pod")
        double = pw.jit(lambda v: v * 2, on=place, in_shardings=pw.P("data", "model"))
        y = double(jax.ShapeDtypeStruct((4096, 4096), "bfloat16"))
        layout = pw.show_sharding(y)
        assert isinstance(layout, pw.Layout)
        assert layout.heading.endswith("as P('data', 'model') on pod: data=32, model=64 (island 0, dev 0–2047)")
        assert layout.bytes_per_device == 2 * 128 * 64
        assert [layout.device_numbers([at]) for at in itertools.islice(range(2048), 2)] == ["0", "1"]
        assert pw.show_sharding(y, to=pw.P()).bytes_crossing == 2047 * 2 * 4096**2
