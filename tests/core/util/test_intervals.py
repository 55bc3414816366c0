"""Intervals: what a list with an entry for each number says, whatever was cut before."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pathways_nb.util.intervals import Intervals, joined, pieces, union

DEVICES = 12
spans = st.tuples(st.integers(0, DEVICES - 1), st.integers(1, DEVICES)).map(lambda s: (s[0], min(s[0] + s[1], DEVICES)))


@given(st.lists(spans, max_size=20))
def test_what_is_replaced_is_what_each_device_had(asked: list[tuple[int, int]]) -> None:
    ranges, devices = Intervals(-1), [-1] * DEVICES
    for number, (low, high) in enumerate(asked):
        assert set(ranges.replace(low, high, number)) == set(devices[low:high])
        devices[low:high] = [number] * (high - low)


@given(st.lists(spans, max_size=20))
def test_a_cut_splits_a_value_and_loses_none(asked: list[tuple[int, int]]) -> None:
    """What is asked for is whole ranges: one for each pair of neighbouring edges, each with a value of its own."""
    ranges = Intervals([0], lambda value: [value[0] + 1])
    edges = {0}
    for low, high in asked:
        where = ranges.between(low, high)
        edges |= {low, high}
        assert len(ranges.values) == len(edges)
        assert where == slice(sorted(edges).index(low), sorted(edges).index(high))
    assert len({id(value) for value in ranges.values}) == len(ranges.values)


def test_by_default_both_parts_have_the_same_value() -> None:
    ranges = Intervals("all")
    assert ranges.values[ranges.between(4, 8)] == ["all"]
    assert ranges.values == ["all"] * 3


@given(st.lists(st.tuples(spans, st.integers(0, 1)), max_size=20), spans)
def test_equal_neighbours_are_merged_and_what_touches_is_found(
    asked: list[tuple[tuple[int, int], int]], there: tuple[int, int]
) -> None:
    found, devices = Intervals(0, end=DEVICES), [0] * DEVICES
    for (low, high), value in asked:
        found.replace(low, high, value)
        found.merge(low, high)
        devices[low:high] = [value] * (high - low)
    assert [value for low, high, value in found for _ in range(low, high)] == devices
    assert all(before != after for before, after in pairwise(found.values))
    assert set(found.values[found.touching(*there)]) == set(devices[there[0] : there[1]])


@given(st.lists(spans, max_size=20))
def test_a_union_is_what_any_covers(asked: list[tuple[int, int]]) -> None:
    start, end = np.array(asked, int).reshape(-1, 2).T
    low, high = union(start, end)
    assert {n for each in asked for n in range(*each)} == {
        n for a, b in zip(low, high, strict=True) for n in range(a, b)
    }
    assert (low[1:] > high[:-1]).all()


@given(st.lists(spans, max_size=20))
def test_pieces_tell_who_covers_them(asked: list[tuple[int, int]]) -> None:
    start, end = np.array(asked, int).reshape(-1, 2).T
    found = list(pieces(start, end, 0, DEVICES))
    assert [(low, high) for low, high, _ in found] == list(
        pairwise(sorted({0, DEVICES, *start.tolist(), *end.tolist()}))
    )
    for low, high, rows in found:
        for number in range(low, high):
            assert rows.tolist() == [row for row, (a, b) in enumerate(asked) if a <= number < b]


def test_what_follows_each_other_is_joined() -> None:
    assert joined([(0, 2), (2, 5), (5, 5), (7, 8), (8, 9)]) == [(0, 5), (7, 9)]
    assert joined([(3, 3)]) == []
