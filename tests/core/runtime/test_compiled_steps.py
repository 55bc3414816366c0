"""An island's steps are cut into launches in a row and what stands before them; inputs are read in C."""

from __future__ import annotations

from typing import Any

import pytest

from pathways_nb.runtime.lowering.compiled_steps import IslandSteps, _reading

ORDER = (7, 3, 4, 5, 8, 6)
"""A bring, three launches, a move, a launch."""


def cut(start: int, stop: int, with_brings: bool = True) -> list[tuple[list[int], list[Any]]]:
    steps = IslandSteps(ORDER, {step: f"launch {step}" for step in (3, 4, 5, 6)}, frozenset({7}))  # type: ignore[misc]
    assert steps.stretches(start, stop, with_brings) is steps.stretches(start, stop, with_brings), "they are kept"
    return [tuple(one) for one in steps.stretches(start, stop, with_brings)]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("start", "stop", "others", "launches"),
    [
        (0, 6, [[7], [8]], [[3, 4, 5], [6]]),
        (1, 3, [[]], [[3, 4]]),
        (0, 1, [[7]], [[]]),
        (3, 6, [[], [8]], [[5], [6]]),
        (4, 5, [[8]], [[]]),
        (2, 2, [[]], [[]]),
    ],
)
def test_a_range_is_cut_where_something_else_than_a_launch_stands(start, stop, others, launches) -> None:
    assert cut(start, stop) == [
        (before, [f"launch {step}" for step in row]) for before, row in zip(others, launches, strict=True)
    ]


def test_brings_are_left_out_where_all_arguments_were_used_in_place() -> None:
    assert cut(0, 6, with_brings=False) == [([], ["launch 3", "launch 4", "launch 5"]), ([8], ["launch 6"])]


def test_ranges_that_are_cut_anywhere_are_not_all_kept() -> None:
    steps = IslandSteps(tuple(range(10)), {})
    for start in range(10):
        for stop in range(start, 10):
            steps.stretches(start, stop)
    assert len(steps._stretches) <= 11


@pytest.mark.parametrize(("slots", "expected"), [((), []), ((2,), ["c"]), ((3, 0), ["d", "a"]), ((1, 1), ["b", "b"])])
def test_slots_are_read_in_the_order_of_the_inputs(slots, expected) -> None:
    assert list(_reading(slots)(["a", "b", "c", "d"])) == expected
