"""What cannot be planned is refused with both sides and the fix."""

from __future__ import annotations

import numpy as np
import pytest

import pathways_nb as pw

ONES = np.ones((2, 4, 4))


def changed(value: float, *where: tuple[int, int, int]) -> np.ndarray:
    table = ONES.copy()
    for place in where:
        table[place] = value
    return table


@pytest.mark.parametrize(
    ("cost", "sizes", "text"),
    [
        (ONES, {"length": 36}, r"length=36 is no multiple of granularity=8.*length=40, or take granularity=4\."),
        (ONES, {"length": 0}, r"length=0: a whole number of at least 1"),
        (ONES, {"length": 32, "stages": 0}, r"stages=0: a whole number of at least 1"),
        (ONES, {"length": 32, "batch": 1.5}, r"batch=1.5: a whole number"),
        (ONES, {"length": 48}, r"the shape \(2, 4, 4\), but a length of 48 tokens has 6 units of granularity=8: give the shape \(groups, 6, 6\), or \(6, 6\)"),
        (np.ones(4), {"length": 32}, r"the shape \(4,\), but a length of 32 tokens has 4 units"),
        ("fast", {"length": 32}, r"cost is a str: an array of seconds is needed, or a function of \(sequences, tokens, context\)"),
        (
            changed(np.nan, (1, 2, 1), (0, 1, 2), (1, 0, 0)),
            {"length": 32, "batch": 2},
            r"cost\[0, 1, 2\] = nan is a hole, the seconds of 1 sequence with 16 tokens after 16, and 2 sequences of 32 tokens on 2 stages need them",
        ),
        (changed(np.inf, (0, 0, 3)), {"length": 32}, r"cost\[0, 0, 3\] = inf is a hole.*a large one where it must not be used"),
        (changed(-1, (1, 3, 0)), {"length": 32, "batch": 2}, r"cost\[1, 3, 0\] = -1.0 is negative, the seconds of 2 sequences"),
        (lambda b, s, c: np.where(c < 16, 1.0, np.nan), {"length": 32}, r"cost\(1, 8, 16\) = nan is a hole"),
    ],
)  # fmt: skip
def test_plan_refuses(cost, sizes, text):
    with pytest.raises(pw.UsageError, match=text):
        pw.terapipe.plan(cost, **{"stages": 2} | sizes)


def test_holes_that_no_slice_needs_are_left_alone():
    holes = changed(np.nan, (0, 3, 1), (0, 1, 3), (1, 0, 0))
    assert pw.terapipe.plan(holes, length=32, stages=2).latency == 2.0


@pytest.mark.parametrize(
    ("token_slices", "text"),
    [
        ([16, 8], r"the token slices \[16, 8\] sum to 24, and length=32: make a slice 8 tokens longer\."),
        ([16, 24], r"sum to 40, and length=32: make a slice 8 tokens shorter\."),
        ([20, 12], r"a token slice of 20: multiples of granularity=8 are needed"),
        ([0, 32], r"a token slice of 0: multiples of granularity=8"),
        ([(1, [32])], r"the groups of the scheme have 1 sequences, and batch=2: make both equal\."),
        ([(3, [32])], r"a group of 3 sequences: the cost is known for 1 to 2\."),
    ],
)
def test_evaluate_refuses(token_slices, text):
    with pytest.raises(pw.UsageError, match=text):
        pw.terapipe.evaluate(ONES, token_slices, length=32, batch=2, stages=2)


def test_an_error_of_the_formula_is_the_users_own():
    def broken(b, s, c):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        pw.terapipe.plan(broken, length=32, stages=2)
