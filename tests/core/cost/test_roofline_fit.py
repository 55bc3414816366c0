"""Fits recover what made the data, and are judged by what they have not seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathways_nb.cost.calibration.fitting import Roofline, halves, held_out, noise, nonnegative, roofline

SIZES = np.geomspace(1e2, 1e8, 16)
positive = st.floats(1e-3, 1e3)


@given(positive, positive)
def test_a_line_is_found_exactly(anyway, each) -> None:
    found = nonnegative(np.stack([np.ones(16), SIZES], 1), 1e-6 * anyway + 1e-9 * each * SIZES)
    assert found == pytest.approx([1e-6 * anyway, 1e-9 * each], rel=1e-6)


@given(st.integers(0, 100))
def test_noise_of_five_percent_moves_a_line_by_less(seed) -> None:
    noisy = (1e-4 + 1e-9 * SIZES) * np.random.default_rng(seed).lognormal(0, 0.05, 16)
    assert nonnegative(np.stack([np.ones(16), SIZES], 1), noisy) == pytest.approx([1e-4, 1e-9], rel=0.15)


def test_what_is_known_before_is_taken_off() -> None:
    found = nonnegative(SIZES[:, None], 1e-4 + 1e-9 * SIZES, before=1e-4)
    assert found == pytest.approx([1e-9])


def test_no_time_is_negative_and_the_rest_is_fitted_without_it() -> None:
    """The line through these falls; the best that does not is their level."""
    terms, seconds = [(1, 1), (1, 2), (1, 3)], [1.2, 1.0, 0.8]
    anyway, each = nonnegative(terms, seconds)
    assert each == 0
    weights = 1 / np.array(seconds)
    assert anyway == pytest.approx(weights.sum() / (weights**2).sum())


@given(st.lists(st.lists(st.floats(0.1, 10), min_size=3, max_size=3), min_size=4, max_size=8), st.data())
def test_no_other_coefficients_do_better(terms, data) -> None:
    seconds = [data.draw(st.floats(0.5, 2)) for _ in terms]
    rows = np.array(terms) / np.array(seconds)[:, None]
    found = nonnegative(terms, seconds)
    best = np.sum((rows @ found - 1) ** 2)
    for step in 0.01 * np.vstack([np.eye(3), -np.eye(3), np.ones((1, 3))]):
        assert np.sum((rows @ np.maximum(found + step, 0) - 1) ** 2) >= best - 1e-9


@pytest.mark.parametrize("seed", range(200))
def test_a_fit_meets_the_conditions_of_an_optimum(seed) -> None:
    """Karush, Kuhn and Tucker: coefficients and gradient are at least 0, and one of both is 0 for each term."""
    random = np.random.default_rng(seed)
    count, measured = int(random.integers(1, 7)), int(random.integers(6, 20))
    units = 10.0 ** random.integers(-6, 7, count)
    terms, seconds = random.normal(1, 1, (measured, count)) * units, random.lognormal(0, 1, measured)
    before = seconds * random.uniform(0, 0.5, measured)
    found = nonnegative(terms, seconds, before)
    rows, rest = terms * (1 / seconds)[:, None], 1 - before / seconds
    gradient = rows.T @ (rows @ found - rest) / np.linalg.norm(rows, axis=0)
    assert (found >= 0).all()
    assert (gradient >= -1e-9).all()
    assert gradient[found > 0] == pytest.approx(0, abs=1e-9)


def test_a_term_that_is_nowhere_costs_nothing() -> None:
    assert nonnegative([(1, 0), (2, 0)], [2.0, 4.0]) == pytest.approx([2.0, 0.0])


@given(positive, positive, st.integers(0, 50))
def test_a_roofline_is_found_through_noise(per_flop, per_byte, seed) -> None:
    """Of samples on both sides of the ridge."""
    random = np.random.default_rng(seed)
    bytes = np.geomspace(1e3, 1e7, 14)
    flops = bytes * per_byte / per_flop * np.tile([0.1, 10.0], 7)
    true = Roofline(per_flop * 1e-9, per_byte * 1e-9)
    seconds = [1e-6 + true.seconds(f, b) for f, b in zip(flops, bytes, strict=True)] * random.lognormal(0, 0.03, 14)
    found = roofline(flops, bytes, seconds, before=1e-6)
    assert found == pytest.approx(true, rel=0.1)


def test_what_never_decides_has_no_cost() -> None:
    flops, bytes = np.geomspace(1e6, 1e9, 6), np.ones(6)
    found = roofline(flops, bytes, flops * 1e-9)
    assert found.per_flop == pytest.approx(1e-9)
    assert max(found.seconds(f, 1.0) for f in flops) == pytest.approx(1.0)
    assert roofline(np.zeros(3), np.array([1e3, 1e4, 1e5]), np.array([1e-6, 1e-5, 1e-4])) == pytest.approx((0, 1e-9))


def test_every_second_size_is_fitted_and_the_others_are_never_seen() -> None:
    seen: list[int] = []

    def fit(samples):
        seen.extend(samples)
        return lambda sample: 2.0 * sample

    assert held_out([1, 2, 3, 4, 5], fit, float) == [1.0, 1.0]
    assert seen == [1, 3, 5]
    assert halves("abcd") == (["a", "c"], ["b", "d"])


@pytest.mark.parametrize("samples", [[], [1], [1, 2]])
def test_too_few_sizes_tell_nothing(samples) -> None:
    assert held_out(samples, lambda seen: pytest.fail("fitted"), float) == []


def test_noise_is_the_quartiles_apart_over_the_median() -> None:
    assert noise([1, 2, 3, 4, 5]) == pytest.approx((4 - 2) / 3)
    assert noise([7.0]) == 0
