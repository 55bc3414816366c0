"""Layouts and reshards as data and as text: what each device holds, what moves, and which calls are refused."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, NamedSharding

import pathways_nb as pw
from pathways_nb.shardings import reshard
from pathways_nb.shardings.blocks import numbers

FOUR = pw.virtual_slice(4, name="four")
TWO = pw.virtual_slice(2, name="two")
MESH = pw.virtual_slice((2, 4), axes=("data", "model"), name="mesh")
POD = pw.virtual_slice((64, 64), axes=("data", "model"), name="pod")


def test_the_text_of_a_layout_says_what_each_device_holds() -> None:
    assert repr(pw.show_sharding((8, 4), pw.P("data"), MESH)) == (
        "float32[8,4], 128 B, as P('data') on mesh: data=2, model=4\n"
        "8 devices, each with a block of 4 × 4, 64 B; 2 blocks, each on 4 devices\n"
        "  [0:4, :] on dev 0–3\n"
        "  [4:8, :] on dev 4–7"
    )


@pytest.mark.parametrize(
    ("shape", "spec", "block", "copies", "bytes_per_device"),
    [
        ((), None, (), 8, 2),
        ((16,), pw.P("model"), (4,), 2, 8),
        ((16,), pw.P(("data", "model")), (2,), 1, 4),
        ((8, 4), pw.P("data", "model"), (4, 1), 1, 8),
        ((2, 3, 4), pw.P(None, None, "model"), (2, 3, 1), 2, 12),
        ((4, 3, 2, 8), pw.P("data", None, None, "model"), (2, 3, 2, 2), 1, 48),
        ((4, 3, 2, 8, 5), pw.P("data", None, None, "model"), (2, 3, 2, 2, 5), 1, 240),
        ((0, 4), pw.P(None, "model"), (0, 1), 2, 0),
    ],
)
def test_any_rank(shape: Any, spec: Any, block: Any, copies: int, bytes_per_device: int) -> None:
    layout = pw.show_sharding(shape, spec, MESH, dtype="bfloat16")
    assert isinstance(layout, pw.Layout)
    assert (layout.block_shape, layout.copies, layout.bytes_per_device) == (block, copies, bytes_per_device)
    assert layout.bytes == 2 * math.prod(shape)


def test_uneven_parts_are_shown_with_what_jax_says() -> None:
    layout = pw.show_sharding((10, 3), pw.P("x"), FOUR)
    assert "dimension 0 of size 10 is not divisible by the devices of 'x': parts of 3, at its end 1" in layout.lines
    assert layout.lines[-1].startswith("JAX takes no uneven array")
    assert "  [9:10, :] on dev 3" in repr(layout)
    empty = pw.show_sharding((2,), pw.P("x"), FOUR)
    assert "parts of 1, at its end nothing" in repr(empty)
    assert "[2:2] on dev 2–3" in repr(empty)


@pytest.mark.parametrize(
    ("devices", "most", "text"),
    [
        ([0], 4, "0"),
        ([0, 1, 2, 5], 4, "0–2, 5"),
        ([0, 2], 4, "0, 2"),
        (list(range(0, 512, 8)), 4, "0, 8, …, 504"),
        ([0, 2, 4, 5, 9, 13], 3, "0, 2, …, 13"),
        ([0, 2, 4, 5, 9, 13], 1, "0 … 13"),
        ([3, 5, 9], 0, "3, …"),
        ([3, 4, 5], 0, "3–5"),
    ],
)
def test_numbers_of_devices(devices: list[int], most: int, text: str) -> None:
    assert numbers(devices, most) == text


def test_a_reshard_says_what_crosses_between_which_devices() -> None:
    moved = pw.show_sharding((8, 4), pw.P("x"), FOUR, to=pw.P(None, "x"))
    assert isinstance(moved, pw.Reshard)
    assert moved.bytes_crossing == 96
    assert moved.pairs is not None
    assert moved.pairs.tolist() == [[i, j, 8] for i in range(4) for j in range(4) if i != j]
    np.testing.assert_array_equal(moved.received, [24] * 4)
    text = repr(moved)
    assert "from float32[8,4], 128 B, as P('x') on four: x=4" in text
    assert "to float32[8,4], 128 B, as P(None, 'x') on four: x=4" in text
    assert "96 B cross between devices, 32 B stay; on the same devices, with the pattern of an all-to-all" in text
    assert "12 pairs of devices, 8 B in each\n  dev 0 → dev 1: 8 B\n" in text
    assert text.endswith("… and 4 more pairs")


@pytest.mark.parametrize(
    ("before", "after", "way"),
    [
        (pw.P("data"), pw.P(), "an all-gather"),
        (pw.P(), pw.P("data"), "each device keeps what it holds, or a part of it"),
        (pw.P("data"), pw.P("data"), "each device keeps what it holds, or a part of it"),
        (pw.P(("data", "model")), pw.P(("model", "data")), "a permute"),
        (pw.P("model"), pw.P(None, "model"), "an all-to-all"),
        (pw.P("data"), pw.P(None, "model"), "by collectives"),
    ],
)
def test_the_pattern_of_a_reshard_on_its_own_devices(before: pw.P, after: pw.P, way: str) -> None:
    found = pw.show_sharding((8, 8), before, MESH, to=after)
    assert found.heading.endswith(way)


def test_devices_of_another_place_are_other_devices() -> None:
    moved = pw.show_sharding((8, 4), pw.P("x"), FOUR, to_place=TWO)
    assert isinstance(moved, pw.Reshard)
    assert (moved.bytes_crossing, len(moved.stays)) == (128, 0)
    assert "  four dev 0 → two dev 0: 32 B" in repr(moved)
    assert "as P('x') on two: x=2" in repr(moved)


def test_thousands_of_devices_need_no_pieces() -> None:
    moved = pw.show_sharding((4096, 4096), pw.P("data", "model"), POD, to=pw.P())
    assert isinstance(moved, pw.Reshard)
    assert moved.pairs is None
    assert moved.bytes_crossing == 4095 * 4 * 4096**2
    assert f"more than {reshard.MOST_PIECES} pieces: pairs of devices are not listed" in repr(moved)
    assert moved._count() == 4096**2


SPECS = st.sampled_from(
    [pw.P(), pw.P("data"), pw.P("model", "data"), pw.P(None, ("data", "model")), pw.P(None, "model")]
)


def by_receiver(rows: np.ndarray) -> np.ndarray:
    """Return the bytes that each of eight devices gets."""
    return np.bincount(rows[:, 1], rows[:, 2], minlength=8)


@settings(max_examples=25)
@given(st.tuples(st.integers(0, 9), st.integers(0, 9)), SPECS, SPECS, st.booleans())
def test_bytes_add_up(shape: tuple[int, int], before: pw.P, after: pw.P, elsewhere: bool) -> None:
    place = pw.virtual_slice((4, 2), axes=("data", "model")) if elsewhere else None
    moved = pw.show_sharding(shape, before, MESH, to=after, to_place=place)
    assert isinstance(moved, pw.Reshard)
    assert moved.pairs is not None
    assert moved.kept is not None
    assert moved.pairs[:, 2].sum() == moved.bytes_crossing
    np.testing.assert_array_equal(by_receiver(moved.pairs), moved.received)
    held = np.prod(moved.after.shards.high - moved.after.shards.low, axis=1)
    np.testing.assert_array_equal(by_receiver(moved.pairs) + by_receiver(moved.kept), 4 * held)


def test_a_named_sharding_names_its_devices() -> None:
    mesh = AbstractMesh((2,), ("a",), axis_types=(AxisType.Auto,))
    layout = pw.show_sharding(np.zeros((4, 2), "i2"), NamedSharding(mesh, pw.P("a")))
    assert layout.heading == "int16[4,2], 16 B, as P('a') on mesh: a=2"
    moved = pw.show_sharding((4, 2), pw.P("x"), TWO, to=NamedSharding(mesh, pw.P()))
    assert moved.heading.endswith("sent in pieces")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        (("ab",), {}, pw.UsageError, "show_sharding('ab'): the first argument is a shape, such as (8, 4), or an array"),
        (((8, -1), None, FOUR), {}, pw.UsageError, "show_sharding((8, -1)): the first argument is a shape"),
        (((8,),), {}, pw.UsageError, 'lies on no devices: say which, as in pw.show_sharding((8, 4), pw.P("x"), '),
        (((8,), pw.P("x")), {}, pw.UsageError, "show_sharding(spec=P('x')): say over which devices, as in pw.show"),
        (((8,), pw.P("x"), "four"), {}, pw.UsageError,
         "show_sharding(place='four'): this is a str, no place. Write a virtual slice, such as pw.virtual_slice(4)"),
        (((8,), pw.P("x"), FOUR), {"to_place": 3}, pw.UsageError, "show_sharding(to_place=3): this is an int, no place"),
        (((8,), pw.P("z"), FOUR), {}, pw.ShardingError,
         "show_sharding: spec = P('z') names the axis 'z', but the place four has only 'x'."),
        (((8,), pw.P("x"), FOUR), {"to": pw.P("y")}, pw.ShardingError, "show_sharding: to = P('y') names the axis 'y'"),
        (((8, 8), pw.P("x", "x"), FOUR), {}, pw.ShardingError,
         "P('x', 'x') names the axis 'x' of four for dimensions 0 and 1: an axis divides one dimension, once."),
        (((8,), pw.P("x", None), FOUR), {}, pw.ShardingError,
         "show_sharding: shape (8,) and spec=P('x', None): it has 2 entries for an array of 1 dimension. Leave out 1 "
         "entry, or give the shape as many dimensions."),
        (((8,), ("x",), FOUR), {}, pw.ShardingError, "show_sharding: spec[0] = 'x' is a str; write a pw.P(...) over"),
        (((8,), pw.P(pw.P.UNCONSTRAINED), FOUR), {}, pw.ShardingError,
         "leaves a dimension to the compiler, so there is nothing to draw. Write for it an axis of four (x=4), or None."),
        (((8,), pw.P("x"), FOUR), {"dtype": "float33"}, pw.UsageError,
         "show_sharding(dtype='float33'): no such type; write one such as \"bfloat16\"."),
    ],
)  # fmt: skip
def test_what_is_refused(arguments: Any, options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        pw.show_sharding(*arguments, **options)


def test_a_named_sharding_and_a_place_are_refused() -> None:
    sharding = NamedSharding(AbstractMesh((2,), ("a",)), pw.P("a"))
    with pytest.raises(pw.UsageError, match=re.escape("Leave place out, or write spec=pw.P('a').")):
        pw.show_sharding((8,), sharding, FOUR)
