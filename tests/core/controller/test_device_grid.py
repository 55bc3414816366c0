"""The boxes of a TPU's grid, the rings through them, and what is said when a place does not fit."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.controller.device_grid import DeviceGrid, in_boxes, ring
from pathways_nb.controller.resources import Resources
from pathways_nb.plan.plan import Placement
from tests.support.examples import examples


def cells_of(*sides: int) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, sides)))


def grid_of(cells: list[tuple[int, ...]], **more: object) -> DeviceGrid:
    order = in_boxes(cells, more.get("host", ()), more.get("by_slice", False))
    return DeviceGrid(tuple(cells[at] for at in order), **more)


def bounds(cells: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(max(axis) - min(axis) + 1 for axis in zip(*cells, strict=True))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
@examples(100)
def test_neighbours_in_a_ring_are_neighbours_in_the_box(sides: list[int]) -> None:
    found = ring([side for side in sides if side > 1])
    assert sorted(found) == sorted(cells_of(*(side for side in sides if side > 1)))
    steps = [sum(abs(a - b) for a, b in zip(*pair, strict=True)) for pair in itertools.pairwise(found)]
    assert set(steps) <= {1}
    long = [side for side in sides if side > 1]
    if len(long) > 1 and math.prod(long) % 2 == 0:
        assert sum(abs(a - b) for a, b in zip(found[0], found[-1], strict=True)) == 1, "the ring is open"


@given(st.lists(st.integers(1, 6), min_size=2, max_size=3), st.data())
@examples(100)
def test_every_box_is_a_run_of_positions_without_a_hole(sides: list[int], data: st.DataObject) -> None:
    cells = data.draw(st.permutations(cells_of(*sides)))
    holes = data.draw(st.integers(0, min(3, len(cells) - 1)))
    grid = grid_of(cells[holes:])
    assert sorted(grid.cells) == sorted(cells[holes:])
    for size, boxes in grid.boxes.items():
        taken: set[tuple[int, ...]] = set()
        for box in boxes.values():
            inside = list(grid.cells[box.first : box.first + box.size])
            assert len(inside) == size == math.prod(box.sides)
            assert bounds(inside) == box.sides
            assert taken.isdisjoint(inside)
            taken |= set(inside)
    assert len(grid.boxes[1]) == len(cells) - holes


def test_boxes_of_known_slices() -> None:
    v5e = grid_of([(x, y, 0) for x, y in cells_of(4, 4)])
    assert {size: next(iter(boxes.values())).sides for size, boxes in v5e.boxes.items()} == {
        1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 4, 1), 16: (4, 4, 1),
    }  # fmt: skip
    v5p = grid_of(cells_of(4, 4, 4))
    assert {size: next(iter(boxes.values())).sides for size, boxes in v5p.boxes.items()} == {
        1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (2, 2, 2), 16: (2, 4, 2), 32: (4, 4, 2), 64: (4, 4, 4),
    }  # fmt: skip
    # Two cores on each chip are halved last.
    v3 = grid_of([(x, y, 0, core) for x, y, core in cells_of(2, 2, 2)])
    assert next(iter(v3.boxes[2].values())).sides == (1, 1, 1, 2)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=3))
@examples(30)
def test_of_sides_that_are_powers_of_two_every_size_is_offered(powers: list[int]) -> None:
    """An aligned box has such sides, too, so no other size can be one."""
    grid = grid_of(cells_of(*(2**power for power in powers)))
    assert list(grid.boxes) == [2**power for power in range(sum(powers) + 1)]
    for size, boxes in grid.boxes.items():
        assert len(boxes) == len(grid.cells) // size
        for box in boxes.values():
            low = tuple(map(min, zip(*grid.cells[box.first : box.first + size], strict=True)))
            assert all(at % side == 0 for at, side in zip(low, box.sides, strict=True))


def test_a_box_is_within_a_slice_or_made_of_whole_ones() -> None:
    grid = grid_of([(number, x, y) for number in range(3) for x, y in cells_of(2, 4)], by_slice=True)
    assert {size: [grid.cells[at][0] for at in boxes] for size, boxes in grid.boxes.items() if size > 2} == {
        4: [0, 0, 1, 1, 2, 2], 8: [0, 1, 2], 16: [0], 24: [0],
    }  # fmt: skip
    assert grid.words == "3 slices, each a 2 × 4 grid of TPU"


def test_a_mesh_takes_whole_slices_one_after_another() -> None:
    grid = grid_of([(number, x, y) for number in (0, 1) for x, y in cells_of(2, 4)], by_slice=True)
    assert grid.words == "2 slices, each a 2 × 4 grid of TPU"
    along = [grid.cells[at] for at in grid.arranged(0, 16, (2, 2, 4))]
    assert along == cells_of(2, 2, 4)
    for shape in ((16,), (4, 4), (2, 8), (1, 16)):
        found = [grid.cells[at] for at in grid.arranged(0, 16, shape)]
        assert sorted(found) == cells_of(2, 2, 4)
        assert [cell[0] for cell in found] == [0] * 8 + [1] * 8
    within = [grid.cells[at] for at in grid.arranged(8, 8, (8,))]
    assert {cell[0] for cell in within} == {1}
    assert all(abs(a[1] - b[1]) + abs(a[2] - b[2]) == 1 for a, b in itertools.pairwise(within))


def test_several_slices_are_drawn_one_below_another() -> None:
    resources = Resources((8,), grids=[grid_of(cells_of(2, 2, 2), by_slice=True)])
    ann = pw.virtual_slice(4, name="ann")
    resources.place([ann])
    with pytest.raises(pw.PlaceError) as error:
        resources.place([pw.virtual_slice(6, name="all")])
    assert str(error.value).endswith(
        "2 slices, each a 2 × 2 grid of TPU, of which a program may have an aligned box: 1, 2, 4, 8 devices. Ask for 4 or 8."
        "\n  slice 0:\n  A A\n  A A\n  slice 1:\n  - -\n  - -\n  (A ann, - free)"
    )


def test_a_box_is_within_a_host_or_made_of_whole_ones() -> None:
    # Pathways refuses it: "bounds are not along host boundaries. Proposed subslice size: 4,1,1, host bounds: 2,2,1".
    flat = grid_of([(x, y, 0) for x, y in cells_of(4, 4)], host=(2, 2, 1))
    assert list(flat.boxes) == [1, 2, 4, 8, 16]
    assert (4, 1, 1) not in [box.sides for boxes in flat.boxes.values() for box in boxes.values()]
    # Hosts of 4 × 2: halved so that they stay whole.
    wide = grid_of([(x, y, 0) for x, y in cells_of(4, 4)], host=(4, 2, 1))
    assert {size: next(iter(boxes.values())).sides for size, boxes in wide.boxes.items()} == {
        1: (1, 1, 1), 2: (1, 2, 1), 4: (2, 2, 1), 8: (4, 2, 1), 16: (4, 4, 1),
    }  # fmt: skip
    # A box of neither: 2 × 4 chips on hosts of 4 × 1.
    thin = grid_of([(x, y, 0) for x, y in cells_of(4, 3)], host=(4, 1, 1))
    assert list(thin.boxes) == [1, 2, 4, 8, 12]


def test_a_mesh_of_the_boxs_sides_lies_along_them_and_another_takes_the_ring() -> None:
    grid = grid_of(cells_of(4, 4))
    along = [grid.cells[at] for at in grid.arranged(0, 8, (2, 4))]
    assert along == [(x, y) for x in range(2) for y in range(4)]
    turned = [grid.cells[at] for at in grid.arranged(0, 8, (4, 2))]
    assert turned == [(x, y) for y in range(4) for x in range(2)]
    around = [grid.cells[at] for at in grid.arranged(8, 8, (8,))]
    assert sorted(around) == [(x, y) for x in (2, 3) for y in range(4)]
    pairs = [*itertools.pairwise(around), (around[-1], around[0])]
    assert all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in pairs)
    # As a user's own map has them.
    assert DeviceGrid(tuple(cells_of(2, 2)), keeps_order=True).arranged(0, 4, (4,)) == [0, 1, 2, 3]


def test_places_are_boxes_and_never_runs_of_the_list() -> None:
    resources = Resources((16,), grids=[grid_of(cells_of(4, 4))])
    slices = [pw.virtual_slice(4) for _ in range(4)]
    found = resources.place(slices)
    assert sorted(found[one.serial].first for one in slices) == [0, 4, 8, 12]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (3, "left asks for 3 devices. Island 0 is a 4 × 4 grid of tpu_v5e, of which a program may have an aligned box: "
            "1, 2, 4, 8, 16 devices. Ask for 2 or 4."),
        (16, "left asks for 16 devices. Island 0 is a 4 × 4 grid of tpu_v5e, of which every box of 16 has lost a device. "
             "Give back what was lost: controller.add(island=0)."),
    ],
)  # fmt: skip
def test_the_error_shows_the_grid_and_who_holds_what(size: int, text: str) -> None:
    grid = grid_of(cells_of(4, 4), unit="tpu_v5e")
    resources = Resources((16,), grids=[grid])
    ann, bob = pw.virtual_slice(8, name="ann"), pw.virtual_slice(4, name="bob")
    resources.place([ann, bob])
    resources.remove(Placement(0, 15, 1))
    with pytest.raises(pw.PlaceError) as error:
        resources.place([pw.virtual_slice(size, name="left")])
    picture = "\n  A A A A\n  A A A A\n  B B - -\n  B B - x\n  (A ann, B bob, - free, x lost)"
    assert str(error.value) == text + picture


def test_a_hole_is_shown_as_one() -> None:
    cells = [cell for cell in cells_of(2, 4) if cell != (1, 3)]
    resources = Resources((7,), grids=[grid_of(cells)])
    with pytest.raises(pw.PlaceError) as error:
        resources.place([pw.virtual_slice(7, name="all")])
    assert str(error.value).endswith(
        "an aligned box: 1, 2, 4 devices. Ask for 4.\n  - - - -\n  - - - ·\n  (- free, · no device)"
    )


def test_a_grid_too_large_to_read_is_not_drawn() -> None:
    resources = Resources((4096,), grids=[grid_of(cells_of(16, 16, 16))])
    with pytest.raises(pw.PlaceError) as error:
        resources.place([pw.virtual_slice(3, name="odd")])
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("odd asks for 3 devices. Island 0 is a 16 × 16 × 16 grid")
