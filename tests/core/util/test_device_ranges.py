"""Ranges of devices: what a list with an entry for each device says, whatever was cut before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pathways_nb.util.device_ranges import Ranges

DEVICES = 12
spans = st.tuples(st.integers(0, DEVICES - 1), st.integers(1, DEVICES)).map(lambda s: (s[0], min(s[0] + s[1], DEVICES)))


@given(st.lists(spans, max_size=20))
def test_what_is_replaced_is_what_each_device_had(asked: list[tuple[int, int]]) -> None:
    ranges, devices = Ranges(-1), [-1] * DEVICES
    for number, (low, high) in enumerate(asked):
        assert set(ranges.replace(low, high, number)) == set(devices[low:high])
        devices[low:high] = [number] * (high - low)


@given(st.lists(spans, max_size=20))
def test_a_cut_splits_a_value_and_loses_none(asked: list[tuple[int, int]]) -> None:
    """What is asked for is whole ranges: one for each pair of neighbouring edges, each with a value of its own."""
    ranges = Ranges([0], lambda value: [value[0] + 1])
    edges = {0}
    for low, high in asked:
        where = ranges.between(low, high)
        edges |= {low, high}
        assert len(ranges.values) == len(edges)
        assert where == slice(sorted(edges).index(low), sorted(edges).index(high))
    assert len({id(value) for value in ranges.values}) == len(ranges.values)


def test_by_default_both_parts_have_the_same_value() -> None:
    ranges = Ranges("all")
    assert ranges.values[ranges.between(4, 8)] == ["all"]
    assert ranges.values == ["all"] * 3
