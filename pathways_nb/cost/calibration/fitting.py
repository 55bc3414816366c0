"""Fits of measured seconds: relative, never negative, judged by sizes that the fit has not seen.

The errors are relative, because a launch of 0.1 ms and a product of 100 ms count alike. Coefficients are never
negative, because no time is: SciPy's active-set method (``nnls``) finds the best such fit. Columns are scaled first,
since seconds per operation and per byte differ by many orders of magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")
Seconds = Callable[[T], float]
"""A function that predicts seconds."""


def nonnegative(terms: Any, seconds: Any, before: Any = 0.0) -> np.ndarray:
    """Return coefficients of at least 0 with the least sum of squared relative errors.

    Args:
        terms: a row for each measurement, a column for each term.
        seconds: measured, above 0.
        before: known part of the seconds; ``before + terms @ coefficients`` is fitted.
    """
    from scipy.optimize import nnls  # late: it takes a fifth of a second, and only calibration needs it

    t = np.asarray(seconds, float)  # (measurements,)
    # Divided by the measured seconds: errors are relative, as 0.1 ms and 100 ms count alike.
    rows, rest = np.asarray(terms, float) / t[:, None], 1 - np.asarray(before) / t
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0  # a term that no measurement has: its coefficient is 0
    return nnls(rows / scale, np.broadcast_to(rest, t.shape))[0] / scale


class Roofline(NamedTuple):
    """Seconds of each operation and of each byte; 0 where it never decides."""

    per_flop: float
    per_byte: float

    def seconds(self, flops: float, bytes: float) -> float:
        """Return the longer of the seconds of operations and of bytes."""
        return max(flops * self.per_flop, bytes * self.per_byte)


def roofline(flops: Any, bytes: Any, seconds: Any, before: Any = 0.0) -> Roofline:
    """Return the roofline under which ``before + max(flops · p, bytes · b)`` is nearest to ``seconds``, relatively.

    Measurements with more operations to a byte than others are bound by operations before those are. So they are sorted
    by this ratio and every cut is tried that leaves two at least on either side, as one alone tells nothing; first the
    two cuts that leave none on one side.

    Args:
        flops: of each measurement.
        bytes: of each measurement.
        seconds: measured, above 0.
        before: known part of the seconds.
    """
    # (measurements,) each; ``rest`` is the share of the seconds that the known part leaves.
    F, B, t = (np.asarray(column, float) for column in (flops, bytes, seconds))
    rest = 1 - np.asarray(before) / t
    # From most bytes for an operation to most operations for a byte: each cut has the bound by bytes in front.
    order = np.argsort(F / np.maximum(B, 1.0))
    best, found = math.inf, Roofline(0.0, 0.0)
    for cut in (0, len(order), *range(2, len(order) - 1)):
        one = Roofline(_slope(F / t, rest, order[cut:]), _slope(B / t, rest, order[:cut]))
        error = float(np.sum((np.maximum(F * one.per_flop, B * one.per_byte) / t - rest) ** 2))
        # Better by more than rounding: of equal cuts, the first is kept.
        if error < best - 1e-12:
            best, found = error, one
    return found


def _slope(amounts: np.ndarray, rest: np.ndarray, chosen: np.ndarray) -> float:
    """Return the seconds per unit, at least 0, that fit the chosen measurements best; 0 if they have no such units."""
    # The least squares of one coefficient: rows · rest / rows · rows.
    rows = amounts[chosen]
    return max(0.0, float(rows @ rest[chosen] / (rows @ rows))) if rows.any() else 0.0


def halves(samples: Sequence[T]) -> tuple[list[T], list[T]]:
    """Return samples to fit and samples to judge the fit by: every second one, in the order of their sizes."""
    return list(samples[::2]), list(samples[1::2])


def held_out(samples: Sequence[T], fit: Callable[[list[T]], Seconds[T]], seconds: Seconds[T]) -> list[float]:
    """Return the relative errors of a fit on every second sample, evaluated on the others; none for fewer than three.

    Args:
        samples: in the order of their sizes.
        fit: returns a prediction fitted on samples.
        seconds: measured seconds of a sample.
    """
    seen, unseen = halves(samples)
    # Two coefficients need two samples.
    if len(seen) < 2:
        return []
    predict = fit(seen)
    return [predict(sample) / seconds(sample) - 1 for sample in unseen]


def noise(seconds: Sequence[float]) -> float:
    """Return the distance of the quartiles of repeated measurements over their median: errors below it mean nothing."""
    lower, middle, upper = np.percentile(seconds, (25, 50, 75))
    return float((upper - lower) / middle)
