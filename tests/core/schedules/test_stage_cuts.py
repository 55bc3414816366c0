"""Blocks cut into stages: exact against exhaustive search, with ties broken as promised."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.errors import UsageError
from pathways_nb.parallel.stage_cuts import cut

NUMBERS = st.one_of(st.integers(0, 6), st.floats(0, 1e9), st.sampled_from([0.1, 0.2, 0.3, 1e-300, 5e-324]))


def every_cut(blocks, count):
    """All ways to cut so many blocks, the lexicographically first first."""
    for inner in combinations(range(1, blocks), count - 1):
        yield tuple(range(*ends) for ends in pairwise((0, *inner, blocks)))


def search(costs, count):
    """The best cut by its definition."""

    def value(ranges):
        sums = [sum(Fraction(costs[number]) for number in one) for one in ranges]
        return max(sums), sum(one * one for one in sums)

    return min(every_cut(len(costs), count), key=value)  # of equal ones the first


@given(st.lists(NUMBERS, min_size=1, max_size=9), st.data())
def test_a_cut_is_what_an_exhaustive_search_finds(costs, data):
    count = data.draw(st.integers(1, len(costs)))
    assert cut(costs, count) == search(costs, count)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=10), st.data())
def test_ties_are_broken_by_squares_and_then_by_order(costs, data):
    count = data.draw(st.integers(1, len(costs)))
    assert cut(costs, count) == search(costs, count)


def test_costs_are_not_rounded():
    assert cut([0.1, 0.2, 0.3, 0.3, 0.2, 0.1], 2) == (range(3), range(3, 6))
    assert cut([1e16, 1.0, 1.0, 1e16], 2) == (range(2), range(2, 4))


def test_many_blocks_are_cut_at_once():
    costs = np.random.default_rng(0).integers(1, 50, 200).tolist()
    ranges = cut(costs, 16)
    assert [number for one in ranges for number in one] == list(range(200))
    assert max(sum(costs[number] for number in one) for one in ranges) >= sum(costs) / 16


def block(params, x):
    return [*x, params]


def test_a_sequence_of_named_functions_that_run_their_blocks():
    found = pw.stages([block] * 5, 3, cost=[1, 1, 1, 1, 4])
    assert found.cuts == (range(2), range(2, 4), range(4, 5))
    assert (len(found), found.costs, found.largest) == (3, (2, 2, 4), 4)
    assert [stage.__name__ for stage in found] == ["blocks 0–1", "blocks 2–3", "block 4"]
    assert found[0] is found[0]
    params = found.split(list("abcde"))
    assert params == [["a", "b"], ["c", "d"], ["e"]]
    assert found.join(params) == list("abcde")
    x = []
    for stage, own in zip(found, params, strict=True):
        x = stage(own, x)
    assert x == list("abcde")


def test_the_cut_of_equal_counts_is_beside_it():
    found = pw.stages([block] * 5, 3, cost=[1, 1, 1, 1, 4])
    assert isinstance(found.equal, pw.Stages)
    assert found.equal.cuts == (range(2), range(2, 4), range(4, 5))
    uneven = pw.stages([block] * 6, 2, cost=[1, 1, 1, 1, 2, 4])
    assert uneven.equal.cuts == (range(3), range(3, 6))
    assert (uneven.largest, uneven.equal.largest) == (6, 7)
    assert repr(uneven) == (
        "6 blocks in 2 stages; costs as given. Largest stage: 6; of equal counts: 7, 1.17 times as much.\n"
        "  stage      blocks  cost  of equal counts  cost\n"
        "  0      blocks 0–3     4       blocks 0–2     3\n"
        "  1      blocks 4–5     6       blocks 3–5     7"
    )
    assert "<table>" in uneven._repr_html_()


def test_blocks_count_the_same_when_nothing_is_known_about_them():
    found = pw.stages([block] * 7, 3)
    assert found.cuts == (range(2), range(2, 4), range(4, 7))
    assert found.basis == "every block counts 1"
    assert "1 times as much" in repr(pw.stages([block], 1, cost=[0]))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: pw.stages([block] * 3, 5), r"stages\(…\): 3 blocks cannot fill 5 stages. Pass at most count=3, or cut the model"),
        (lambda: pw.stages([block] * 3, 0), r"stages\(…, count=0\): pass a whole number of stages, at least 1."),
        (lambda: pw.stages((block, 3), 1), r"stages\(…\): block 1 is an int, not a function \(params, x\) -> y."),
        (lambda: pw.stages([block] * 3, 2, cost=[1, 2]), r"stages\(cost=…\): 2 numbers for 3 blocks. Pass one for each."),
        (lambda: pw.stages([block] * 3, 2, cost=[1, -2, 1]), r"the cost of block 1 \('block'\) is -2. Pass a finite number, at least 0."),
        (lambda: pw.stages([block] * 3, 2, cost=[1, 1, float("nan")]), r"the cost of block 2 \('block'\) is nan"),
        (lambda: pw.stages([block] * 3, 2, cost="guessed"), r"cost='guessed'\): choose 'estimated', 'measured', or pass a number"),
        (lambda: pw.stages([block] * 3, 2, cost="measured"), r"cost='measured'\) needs params= \(a tree for each block\) and x="),
        (lambda: pw.stages([block] * 3, 2, params=[1] * 3), r"pass both params= \(a tree for each block\) and x="),
        (lambda: pw.stages([block] * 3, 2, params=[1] * 2, x=1.0), r"stages\(params=…\): 2 trees for 3 blocks. Pass one for each."),
        (lambda: pw.stages([block] * 3, 2).split([1]), r"split\(block_params\): 1 tree for 3 blocks. Pass one for each."),
        (lambda: pw.stages([block] * 3, 2).join([[1]]), r"join\(stage_params\): 1 list for 2 stages."),
        (lambda: pw.stages([block] * 3, 2).join([[1, 2], [3]]), r"join\(stage_params\): the stage of block 0: 2 trees for 1 block"),
        (lambda: pw.stages([block] * 3, 2)[0]([1, 2], []), r"the stage of block 0: 2 trees for 1 block"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused(wrong, text):
    with pytest.raises(UsageError, match=text):
        wrong()
