"""The paper's form is found again from measured slices, with the error on sizes that were not fitted."""

from __future__ import annotations

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.util import progress


def slice_seconds(b: int, s: int, c: int) -> float:
    """A cost of the paper's form: flat, then linear in the tokens."""
    return max(1e-3, 4e-4 + 2e-6 * b * s) + (1e-5 + 1e-8 * b * s + 2e-8 * b * c + 1e-9 * b * s * c if c else 0.0)


def samples(batches=(1, 2), lengths=range(8, 257, 8), contexts=(0, 64, 128)):
    return [(b, s, c, slice_seconds(b, s, c)) for b in batches for s in lengths for c in contexts]


def test_coefficients_are_found_again():
    cost = pw.terapipe.fit(samples())
    assert cost.coefficients == pytest.approx((1e-5, 1e-8, 2e-8, 1e-9), rel=1e-6)
    assert cost.context_error == pytest.approx(0, abs=1e-9)
    assert cost.length_error < 2e-3
    assert cost(2, 64, 128) == pytest.approx(slice_seconds(2, 64, 128), rel=1e-9)


def test_it_is_a_cost_like_the_formula_that_was_measured():
    cost = pw.terapipe.fit(samples())
    sizes = {"length": 256, "batch": 4, "stages": 8}
    most = lambda b, s, c: slice_seconds(b, s, c) if b <= 2 else 1e9  # noqa: E731 - groups of 3 were not measured
    assert pw.terapipe.plan(cost, **sizes).latency == pytest.approx(pw.terapipe.plan(most, **sizes).latency, rel=1e-9)


def test_between_measured_sizes_it_interpolates_and_below_the_shortest_it_is_flat():
    cost = pw.terapipe.fit([(b, s, 0, 1e-3 * b * s) for b in (1, 3) for s in (16, 32)] + [(1, 16, 16, 16e-3)])
    assert cost(1, [8, 16, 24, 32], 0) == pytest.approx([16e-3, 16e-3, 24e-3, 32e-3])
    assert cost(2, 24, 0) == pytest.approx(48e-3)
    assert cost.error is cost.length_error is cost.context_error is None


def test_what_context_adds_is_never_negative():
    cost = pw.terapipe.fit([(1, s, c, 1e-3 * s - (1e-4 if c else 0)) for s in (8, 16, 24) for c in (0, 8, 16)])
    assert cost.coefficients == (0, 0, 0, 0)


def test_the_error_is_that_of_sizes_not_seen():
    noisy = np.random.default_rng(0)
    rows = [(b, s, c, t * noisy.normal(1, 0.05)) for b, s, c, t in samples()]
    cost = pw.terapipe.fit(rows)
    assert 0.02 < cost.context_error < 0.1
    assert "with context" in repr(cost)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([(1, 8, 0, 1.0)], r"1 slices without context and 0 with context; both are needed"),
        ([(1, 8, 8, 1.0)], r"0 slices without context and 1 with context"),
        ([(1, 8, 0)], r"\(1, 8, 0\) is no measured slice"),
        ([(1, 8, 0, -1.0)], r"\(1, 8, 0, -1.0\) is no measured slice.*seconds above 0"),
        ([(1, 8.5, 0, 1.0)], r"\(1, 8.5, 0, 1.0\) is no measured slice"),
    ],
)
def test_rows_that_cannot_be_fitted(rows, text):
    with pytest.raises(pw.UsageError, match=text):
        pw.terapipe.fit(rows)


def test_more_than_was_measured_is_refused():
    cost = pw.terapipe.fit(samples())
    with pytest.raises(pw.UsageError, match=r"1 × 264 tokens: measured are 1 to 2 sequences of up to 256 tokens"):
        cost(1, 264, 0)
    with pytest.raises(pw.UsageError, match=r"3 × 8 tokens"):
        cost(3, 8, 0)


def test_measure_times_slices_in_turns_and_tells_how_far_it_is(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", -2)
    monkeypatch.setattr(progress, "PAUSE", -1e9)
    calls, lines = [], []

    def timed(b, s, c):
        calls.append((b, s, c))
        return slice_seconds(b, s, c)

    cost = pw.terapipe.fit_timed(timed, length=128, contexts=2, rounds=2, say=lines.append)
    once = len(calls) // 3
    assert calls[:once] == calls[once : 2 * once] == calls[2 * once :]
    assert {s for _, s, _ in calls} == {8, 16, 32, 64, 128}
    assert max(s + c for _, s, c in calls) == 128
    assert cost.noise == 0
    assert lines[0].startswith(f"terapipe.measure: compiling, slice 1 of {once} (")
    assert lines[-2].startswith(f"terapipe.measure: round 2 of 2, slice {once} of {once} (")
    assert lines[-1] == "", "the line goes when it is done"
    assert cost(1, 64, 64) == pytest.approx(slice_seconds(1, 64, 64), rel=1e-6)


@pytest.mark.parametrize("lengths", [[8, 12, 64], [8, 32], []])
def test_measure_refuses_lengths_that_do_not_fit(lengths):
    with pytest.raises(pw.UsageError, match=r"multiples of granularity=8 up to length=64, which is the last one"):
        pw.terapipe.fit_timed(slice_seconds, length=64, lengths=lengths)
