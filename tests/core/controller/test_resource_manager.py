"""The resource manager: who lies where, and what is said when it does not fit."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.controller.resources import Resources
from pathways_nb.plan.plan import Placement
from tests.support.examples import examples


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
@examples(60)
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


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from(["place", "place", "place", "forget", "lose", "restore"]), st.integers(1, 9))),
)
@examples(150)
def test_a_slice_lies_where_trying_every_window_would_put_it(islands: list[int], story: list[tuple[str, int]]) -> None:
    resources, held = Resources(islands), list[pw.VirtualSlice]()
    load, gone = [[0] * count for count in islands], [[0] * count for count in islands]
    moved: set[int] = set()

    def crowding(window: tuple[int, int]) -> tuple[int, int, int, int, int]:
        island, first = window
        inside = load[island][first : first + number]
        return max(inside), sum(inside), sum(load[island]), island, first

    for what, number in story:
        island = number % len(islands)
        if what == "forget" and held:
            forgotten = held.pop(number % len(held)).serial
            if where := resources.placements.get(forgotten):
                carry(load, where, -1)
            resources.forget(forgotten)
        elif what == "lose":
            lost = Placement(island, 0, min(number, islands[island]))
            for serial, where in resources.placements.items():
                if where.island == island and where.first < lost.count:
                    carry(load, where, -1)
                    moved.add(serial)
            carry(gone, lost, 1)
            resources.remove(lost)
        elif what == "restore":
            gone[island] = [0] * islands[island]
            for where in (where for serial, where in resources.placements.items() if serial in moved):
                carry(load, where, -1)
            moved = moved if any(map(any, gone)) else set()
            resources.restore(island)
        elif what == "place":
            windows = [
                (i, first)
                for i, count in enumerate(islands)
                for first in range(count - number + 1)
                if not any(gone[i][first : first + number])
            ]
            held.append(pw.virtual_slice(number))
            if windows:
                assert placed(resources, held[-1])[0][:2] == min(windows, key=crowding)
                carry(load, resources.placements[held[-1].serial], 1)
            else:
                with pytest.raises(pw.PlaceError):
                    resources.place([held[-1]])


def carry(counts: list[list[int]], where: Placement, by: int) -> None:
    for device in range(where.first, where.first + where.count):
        counts[where.island][device] += by


def test_what_is_kept_of_an_island_grows_with_slices_that_differ_not_with_devices() -> None:
    for size, count in ((65_536, 1), (32, 2048)):
        resources = Resources((65_536,))
        slices = [pw.virtual_slice(size) for _ in range(count)]
        found = resources.place(slices)
        assert sorted(where.first for where in found.values()) == list(range(0, 65_536, size))
        assert [*resources._load[0].ranges()] == [(0, 65_536, 1)]


def test_lost_devices_are_named_in_runs() -> None:
    resources = Resources((8, 2))
    resources.remove(Placement(0, 1, 3))
    resources.remove(Placement(0, 6, 1))
    text = "of which devices 1–3 of island 0, device 6 of island 0 are lost. A slice lies within one island"
    with pytest.raises(pw.PlaceError, match=text):
        resources.place([pw.virtual_slice(4)])
    resources.remove(Placement(0, 0, 6))
    assert [*map(str, resources.lost)] == ["island 0, dev 0–6"], "each once, however often it was lost"


@pytest.mark.parametrize(
    ("islands", "lost", "size", "text"),
    [
        ((4,), [4], 4, "of which devices 0–3 of island 0 are lost. Give back what was lost: controller.add(island=0)."),
        ((4, 4), [4, 4], 8, "are lost. Attach more: pw.attach(…, islands=2, devices_per_island=8)."),
        ((4, 4), [4, 1], 4, "are lost. Ask for at most 3, or give back what was lost: controller.add(island=0)."),
        ((1,), [1], 1, "but there is 1 island of 1 device, of which device 0 of island 0 is lost. Give back what"),
    ],
)
def test_where_devices_are_lost_the_way_back_is_told(islands: Any, lost: Any, size: int, text: str) -> None:
    resources = Resources(islands)
    for island, count in enumerate(lost):
        resources.remove(Placement(island, 0, count))
    with pytest.raises(pw.PlaceError) as error:
        resources.place([pw.virtual_slice(size, name="s")])
    assert text in str(error.value)
    assert "at most 0" not in str(error.value)


def test_a_finalizer_in_the_midst_of_placing_changes_nothing_there() -> None:
    """A collection may run anywhere, in any thread: what is gone is only noted, and seen to by the next who asks."""
    resources = Resources((2,), threading.RLock())
    old, new = pw.virtual_slice(2), pw.virtual_slice(1)
    resources.place([old])
    with resources._up_to_date():
        resources.forget(old.serial)
        assert list(resources._placements) == [old.serial]
    assert resources.place([new])[new.serial] == Placement(0, 0, 1)
    assert list(resources.placements) == [new.serial]


def test_threads_place_and_forget_at_once_and_the_load_adds_up() -> None:
    resources = Resources((8, 8), threading.RLock())

    def use() -> None:
        for size in [1, 2, 3, 4] * 30:
            place = pw.virtual_slice(size)
            resources.place([place])
            resources.forget(place.serial)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert resources.placements == {}
    assert [[*load.ranges()] for load in resources._load] == [[(0, 8, 0)]] * 2


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


@pytest.mark.parametrize(
    ("islands", "slice_", "text"),
    [
        ((4, 4), pw.virtual_slice(9, name="s"), "s asks for 9 devices, but there are 2 islands of 4 devices. Ask for at most 4"),
        ((4, 2), pw.virtual_slice(5, name="s"), r"2 islands of 4 \+ 2 devices. A slice lies within one island: use two, "),
        ((4, 2), pw.virtual_slice(3, island=1, name="s"), "s asks for 3 devices of island 1, but"),
        ((4, 4), pw.virtual_slice(1, island=2, name="s"), "of island 2, but there are 2 islands of 4 devices, numbered from 0"),
        ((2,), pw.virtual_slice((2, 2), axes=("a", "b"), name="s"), r"s asks for 4 devices \(2 × 2\), but there is 1 island of 2 devices\. "),
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
    assert "Leave out island=1 to place it on another, ask for at most 1, or attach more" in str(error.value)


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
    assert pw.virtual_slice(np.int64(4)).size == 4


@pytest.mark.parametrize("name", [5, None])
def test_a_name_that_is_no_text_is_refused(name):
    with pytest.raises(ValueError, match=r'virtual_slice\(name=.*\): the name must be a text, such as name="left"\.'):
        pw.virtual_slice(2, name=name)
