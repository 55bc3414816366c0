"""The search is exact: equal to trying everything on random tables, and never worse than equal slices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.parallel.terapipe import bound_search
from tests.core.parallel.terapipe.cases import hinge
from tests.support.examples import examples


@cache
def compositions(n: int) -> list[tuple[int, ...]]:
    """All ways to cut ``n`` units into slices."""
    return [()] if n == 0 else [(k, *rest) for k in range(1, n + 1) for rest in compositions(n - k)]


@cache
def partitions(batch: int, most: int) -> list[tuple[int, ...]]:
    """All ways to divide a batch into groups, the largest first."""
    if not batch:
        return [()]
    return [(b, *rest) for b in range(min(batch, most), 0, -1) for rest in partitions(batch - b, b)]


def every_latency(table: np.ndarray, batch: int, stages: int) -> Iterator[float]:
    """The latency of every slicing of every division of a batch."""
    groups, n, _ = table.shape

    def times(b: int) -> list[tuple[float, float]]:
        found = []
        for cut in compositions(n):
            each = [table[b - 1, k - 1, c] for k, c in zip(cut, np.cumsum((0, *cut)), strict=False)]
            found.append((sum(each), max(each)))
        return found

    cut = {b: times(b) for b in range(1, groups + 1)}
    for division in partitions(batch, groups):
        ways = [combinations_with_replacement(cut[b], division.count(b)) for b in sorted(set(division))]
        pools = [[(sum(s for s, _ in way), max(m for _, m in way)) for way in pool] for pool in ways]
        totals = [(0.0, 0.0)]
        for pool in pools:
            totals = [(s + s2, max(m, m2)) for s, m in totals for s2, m2 in pool]
        yield min(s + (stages - 1) * m for s, m in totals)


seeds = st.integers(0, 2**32 - 1)
tables = st.tuples(st.integers(1, 3), st.integers(1, 5), seeds, st.sampled_from([1, 3, 50]))


@examples(60)
@given(made=tables, batch=st.integers(1, 4), stages=st.integers(1, 12), at_once=st.sampled_from([1, 3, 16]))
def test_random_tables_against_everything(made, batch, stages, at_once):
    groups, n, seed, values = made
    random = np.random.default_rng(seed)
    table = random.uniform(0.1, 3, (groups, n, n)) if values == 1 else random.integers(0, values, (groups, n, n)) / 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bound_search, "AT_ONCE", at_once)
        found = pw.terapipe.plan(table, length=8 * n, batch=batch, stages=stages)
    best = min(every_latency(table[: min(groups, batch)], batch, stages))
    assert found.latency == pytest.approx(best, rel=1e-12, abs=1e-12)
    again = pw.terapipe.evaluate(table, found.scheme, length=8 * n, batch=batch, stages=stages)
    assert again.latency == found.latency


def least_under_every_bound(table: np.ndarray, batch: int, stages: int) -> float:
    """The least latency over all bounds, each solved by the paper's recurrence, one slice after another."""
    groups, n, _ = table[:batch].shape
    found = []
    for bound in np.unique(table):
        sums = np.zeros((groups + 1, n + 1))
        for b in range(1, groups + 1):
            for i in range(1, n + 1):
                each = [(sums[b, i - k], table[b - 1, k - 1, i - k]) for k in range(1, i + 1)]
                sums[b, i] = min((s + t for s, t in each if t <= bound), default=np.inf)
        total = [0.0]
        for a in range(1, batch + 1):
            total.append(min(total[a - b] + sums[b, n] for b in range(1, min(a, groups) + 1)))
        found.append(total[-1] + (stages - 1) * bound)
    return min(found)


@examples(15)
@given(groups=st.integers(1, 2), n=st.integers(6, 10), batch=st.integers(1, 4), stages=st.integers(2, 60), seed=seeds)
def test_noisy_costs_against_every_bound(groups, n, batch, stages, seed):
    random = np.random.default_rng(seed)
    b, k, c = np.ogrid[1 : groups + 1, 1 : n + 1, 0:n]
    start, work, context = random.uniform(0, (3, 1, 0.1))
    table = (start + work * b * k + context * b * k * (k + c)) * random.lognormal(0, 0.1, (groups, n, n))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bound_search, "AT_ONCE", 2)
        found = pw.terapipe.plan(table, length=8 * n, batch=batch, stages=stages)
    assert found.latency == pytest.approx(least_under_every_bound(table, batch, stages), rel=1e-12)


@examples(30)
@given(
    units=st.integers(1, 40),
    batch=st.integers(1, 5),
    stages=st.integers(1, 40),
    floor=st.floats(0, 1e-2),
    start=st.floats(0, 1e-2),
    token=st.floats(0, 1e-4),
    pair=st.floats(0, 1e-7),
)
def test_never_worse_than_equal_slices(units, batch, stages, floor, start, token, pair):
    cost = hinge(floor, start, token, pair)
    found = pw.terapipe.plan(cost, length=8 * units, batch=batch, stages=stages)
    assert found.latency <= min(found.uniform.values()) * (1 + 1e-12)
    assert sum(size for size, _ in found.scheme) == batch
    assert {sum(tokens) for _, tokens in found.scheme} == {8 * units}


def test_more_stages_want_smaller_slices():
    cost = hinge(0, 1e-3, 1e-5, 1e-9)
    counts = [pw.terapipe.plan(cost, length=512, stages=stages).slice_count for stages in (1, 4, 16, 64)]
    assert counts == sorted(counts)
    assert counts[0] == 1


def test_rounds_with_few_cells_find_the_same(monkeypatch):
    cost = hinge(2e-4, 1e-4, 1e-6, 1e-9)
    wide = pw.terapipe.plan(cost, length=512, batch=6, stages=12)
    monkeypatch.setattr(bound_search, "CELLS", 1)
    assert pw.terapipe.plan(cost, length=512, batch=6, stages=12).latency == pytest.approx(wide.latency, rel=1e-12)


def test_a_table_of_single_sequences_makes_groups_of_one():
    table = np.full((4, 4), 2.0)
    assert pw.terapipe.plan(table, length=32, batch=3, stages=2).scheme == ((1, (32,)),) * 3
    assert pw.terapipe.plan(np.stack([table] * 2), length=32, batch=3, stages=2).scheme == ((1, (32,)), (2, (32,)))


def test_a_further_column_of_context_is_allowed():
    table = np.random.default_rng(0).uniform(1, 2, (4, 5))
    assert pw.terapipe.plan(table, length=32, stages=3) == pw.terapipe.plan(table[:, :4], length=32, stages=3)


@pytest.mark.parametrize(
    "scalar",
    [
        lambda b, s, c: max(1e-3, 1e-5 * b * s + 1e-8 * b * s * c),
        lambda b, s, c: 1e-3 if b * s < 100 and c < 1e5 else 1e-5 * b * s + 1e-8 * b * s * c,
    ],
)
def test_a_formula_of_numbers_is_called_with_numbers(scalar):
    by_numbers = pw.terapipe.plan(scalar, length=64, batch=2, stages=4)
    table = [[[scalar(b, 8 * s, 8 * c) for c in range(8)] for s in range(1, 9)] for b in (1, 2)]
    assert by_numbers == pw.terapipe.plan(table, length=64, batch=2, stages=4)


def test_a_constant_is_a_formula():
    assert pw.terapipe.plan(lambda b, s, c: 0.5, length=64, stages=4).latency == 2.0


def test_a_slicing_reads_well():
    found = pw.terapipe.plan(lambda b, s, c: 0.5 + 0.125 * b * s, length=24, batch=2, stages=9)
    lines = repr(found).splitlines()
    assert lines[0] == "Slicing of 2 sequences of 24 tokens on 9 stages: 21 s = sum 9 + 8 × max 1.5"
    assert [line.split() for line in lines[1:]] == [
        ["slices", "seconds", "over", "this"],
        ["[(1,", "[8×3])]", "×", "2", "21", "1.00"],
        ["uniform,", "1", "slice", "of", "24", "35", "1.67"],
        ["uniform,", "3", "slices", "of", "8", "21", "1.00"],
    ]
    assert found._repr_html_().startswith("<table>")


def test_token_slices_are_those_of_every_sequence():
    found = pw.terapipe.evaluate(lambda b, s, c: 1.0, [16, 8], length=24, batch=2, stages=2)
    assert found.token_slices == (16, 8)
    mixed = pw.terapipe.evaluate(lambda b, s, c: 1.0, [(1, [24]), (1, [16, 8])], length=24, batch=2, stages=2)
    with pytest.raises(pw.UsageError, match=r"sliced in 2 ways, \[\(1, \[24\]\)\] \+ \[\(1, \[16, 8\]\)\].*batch=1"):
        _ = mixed.token_slices
