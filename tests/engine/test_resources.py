"""The resource manager and virtual slices: who lies where, and what is said when it does not fit."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.controller.resources import Resources
from pathways_nb.program.plan import Placement


def eventually(freed: Callable[[], bool]) -> bool:
    """Whether it comes true: a thread may hold the run that it has just finished for a moment longer."""
    deadline = time.monotonic() + 5
    while not freed() and time.monotonic() < deadline:
        gc.collect()
    return freed()


def placed(resources: Resources, *slices: pw.VirtualSlice) -> list[tuple[int, int, int]]:
    """(island, first, count) of each slice."""
    found = resources.place(slices)
    return [(found[s.serial].island, found[s.serial].first, found[s.serial].count) for s in slices]


def test_slices_are_spread_over_islands_first_and_devices_next() -> None:
    four = [pw.virtual_slice(4) for _ in range(4)]
    assert placed(Resources((4, 4)), *four) == [(0, 0, 4), (1, 0, 4), (0, 0, 4), (1, 0, 4)]
    two = [pw.virtual_slice(2) for _ in range(4)]
    assert sorted(placed(Resources((4, 4)), *two)) == [(0, 0, 2), (0, 2, 2), (1, 0, 2), (1, 2, 2)]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.lists(st.integers(1, 3), max_size=8))
@settings(max_examples=60, deadline=None)
def test_no_device_carries_two_slices_while_a_window_is_free(islands: list[int], sizes: list[int]) -> None:
    resources = Resources(islands)
    load = [[0] * count for count in islands]
    for size in (s for s in sizes if s <= max(islands)):
        free = any(
            not any(load[i][first : first + size])
            for i in range(len(islands))
            for first in range(islands[i] - size + 1)
        )
        ((island, first, count),) = placed(resources, pw.virtual_slice(size))
        assert count == size
        assert first + count <= islands[island]
        if free:
            assert not any(load[island][first : first + count])
        for device in range(first, first + count):
            load[island][device] += 1


def test_placing_again_changes_nothing_and_order_of_asking_does_not_matter() -> None:
    first, second = pw.virtual_slice(4), pw.virtual_slice(4)
    resources = Resources((4, 4))
    assert placed(resources, second, first) == [(1, 0, 4), (0, 0, 4)]
    assert placed(resources, first) == [(0, 0, 4)]


def test_slices_share_devices_and_a_forgotten_one_makes_room() -> None:
    resources = Resources((2,))
    one, two = pw.virtual_slice(2), pw.virtual_slice(2)
    assert placed(resources, one, two) == [(0, 0, 2), (0, 0, 2)]
    resources.forget(one.serial)
    resources.forget(one.serial)
    resources.forget(two.serial)
    left, right = pw.virtual_slice(1), pw.virtual_slice(1)
    assert placed(resources, left, right) == [(0, 0, 1), (0, 1, 1)]


def test_an_island_can_be_asked_for() -> None:
    resources = Resources((4, 2))
    assert placed(resources, pw.virtual_slice(1, island=1), pw.virtual_slice(1, island=1)) == [(1, 0, 1), (1, 1, 1)]


def test_two_dimensional_slices_count_their_devices() -> None:
    grid = pw.virtual_slice((2, 2), axes=("data", "model"))
    assert placed(Resources((4,)), grid) == [(0, 0, 4)]
    assert (grid.size, grid.axes) == (4, ("data", "model"))


def test_more_devices_than_an_island_has_suggests_two_slices() -> None:
    big = pw.virtual_slice(8, name="big")
    with pytest.raises(pw.PlaceError) as error:
        Resources((4, 4)).place([big])
    assert str(error.value) == (
        "big asks for 8 devices, but there are 2 islands of 4 devices. A slice lies within one island: use two, "
        "pw.virtual_slice(4) and pw.virtual_slice(4), or attach more: "
        'pw.attach("cpu", islands=2, devices_per_island=8).'
    )


@pytest.mark.parametrize(
    ("islands", "slice_", "text"),
    [
        ((4, 4), pw.virtual_slice(9, name="s"), "s asks for 9 devices, but there are 2 islands of 4 devices. Ask for at most 4"),
        ((4, 2), pw.virtual_slice(5, name="s"), r"2 islands of 4 \+ 2 devices. A slice lies within one island: use two, "),
        ((4, 2), pw.virtual_slice(3, island=1, name="s"), "s asks for 3 devices, but"),
        ((4, 4), pw.virtual_slice(1, island=2, name="s"), "of island 2, but there are 2 islands of 4 devices, numbered from 0"),
        ((2,), pw.virtual_slice((2, 2), axes=("a", "b"), name="s"), r"s asks for 4 devices \(2 × 2\), but there are 1 island of 2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_says_both_numbers(islands: tuple[int, ...], slice_: pw.VirtualSlice, text: str) -> None:
    resources = Resources(islands)
    with pytest.raises(pw.PlaceError, match=text):
        resources.place([slice_])
    assert placed(resources, pw.virtual_slice(1)) == [(0, 0, 1)]


def test_a_slice_that_does_not_fit_its_own_island_is_not_told_to_split() -> None:
    """Two halves would not fit island 1 of two devices at once, but each alone does."""
    with pytest.raises(pw.PlaceError) as error:
        Resources((4, 1)).place([pw.virtual_slice(3, island=1, name="s")])
    assert "Ask for at most 1" in str(error.value)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: pw.virtual_slice(0), r"virtual_slice\(shape=0\): every size must be a whole number of at least 1"),
        (lambda: pw.virtual_slice(-1), "at least 1"),
        (lambda: pw.virtual_slice(()), "at least 1"),
        (lambda: pw.virtual_slice(True), "whole number"),
        (lambda: pw.virtual_slice(2.0), "whole number"),
        (lambda: pw.virtual_slice("4"), "whole number"),
        (lambda: pw.virtual_slice((2, 2)), r'write pw.virtual_slice\(\(2, 2\), axes=\("data", "model"\)\)'),
        (lambda: pw.virtual_slice((2, 2), axes=("a",)), "2 sizes need 2 different axis names, got 1"),
        (lambda: pw.virtual_slice((2, 2), axes=("a", "a")), "2 different axis names"),
    ],
)
def test_what_is_no_rectangle_is_refused(call: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()  # type: ignore[operator]


def test_a_slice_says_what_it_is() -> None:
    assert (
        repr(pw.virtual_slice((2, 4), axes=("data", "model"), name="grid")) == "<virtual slice grid: data=2, model=4>"
    )
    assert pw.virtual_slice(2, axes="rows").axes == ("rows",)
    assert str(Placement(1, 2, 2)) == "island 1, dev 2–3"
    assert str(Placement(0, 3, 1)) == "island 0, dev 3"


def test_numpy_counts_are_whole_numbers_too() -> None:
    """``len(x) // 2`` from NumPy is an ordinary way to come by a number of devices."""
    np = pytest.importorskip("numpy")
    assert pw.virtual_slice(np.int64(4)).size == 4


def test_a_place_takes_the_name_of_the_variable_that_holds_it(controller: pw.Controller) -> None:
    scope: dict[str, object] = {"pw": pw}
    cell = "upper = pw.virtual_slice(2)\n@pw.jit(on=upper)\ndef f(v): return v\n"
    exec(compile(cell, "cell.py", "exec"), scope)
    assert scope["upper"].label == "upper"  # type: ignore[attr-defined]
    assert repr(scope["f"]) == "<computation f on upper>"


def test_a_slice_that_nobody_holds_frees_its_devices(controller: pw.Controller) -> None:
    def use() -> None:
        place = pw.virtual_slice(4)
        pw.put(1.0, on=place).result()

    use()
    gc.collect()
    assert controller.resources.placements == {}


def test_a_slice_placed_by_a_replayed_program_frees_its_devices_too(
    controller: pw.Controller, quiet: Callable[..., None]
) -> None:
    def traced() -> pw.Program:
        program = pw.program(pw.jit(lambda v: v + 1, on=pw.virtual_slice(2)))
        program(1.0).wait()
        return program

    program = traced()
    with pw.attach("cpu", islands=1, devices_per_island=2) as other:
        program(1.0).wait()  # the same trace, placed anew
        (serial,) = other.resources.placements
        del program
        quiet(other)
        assert eventually(lambda: serial not in other.resources.placements)


def test_places_go_whatever_computation_a_cell_calls_first(controller: pw.Controller) -> None:
    old = pw.jit(lambda v: v + 1, on=pw.virtual_slice(1))

    def cell() -> None:
        new = pw.jit(lambda v: v * 2, on=pw.virtual_slice(1))
        with pw.record():
            old(1.0), new(1.0)

    cell()
    held = len(controller.resources.placements)
    for _ in range(4):
        cell()
    assert eventually(lambda: len(controller.resources.placements) <= held)


def test_status_lists_islands_devices_places_and_memory(
    controller: pw.Controller, left: pw.VirtualSlice, quiet: Callable[..., None]
) -> None:
    kept = pw.put([1.0, 2.0], on=left)
    quiet(controller)
    assert pw.get(kept) == [1.0, 2.0]
    text = controller.status()
    assert "<controller cpu: 2 islands × 4 devices, parallel dispatch>" in text
    assert "island 1: 4 × cpu, ids " in text
    assert "place left: island 0, dev 0–3" in text
    assert "object store: 2 buffers, 8 B" in text
    html = controller._repr_html_()
    assert "place left: island 0, dev 0–3" in html
    assert "&lt;controller cpu" in html
