"""Fits of measured seconds: relative, never negative, judged by sizes that the fit has not seen.

Relative, because a launch of 0.1 ms and a product of 100 ms count alike; never negative, because no time is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy.optimize import nnls

T = TypeVar("T")
Seconds = Callable[[T], float]
"""A prediction."""


def nonnegative(terms: Any, seconds: Any, before: Any = 0.0) -> np.ndarray:
    """Coefficients of at least 0 with the least sum of squared relative errors of ``before + terms @ coefficients``.

    Args:
        terms: a row for each measurement, a column for each term. seconds: measured, above 0. before: what is known.
    """
    t = np.asarray(seconds, float)
    rows, rest = np.asarray(terms, float) / t[:, None], 1 - np.asarray(before) / t
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    return nnls(rows / scale, np.broadcast_to(rest, t.shape))[0] / scale


class Roofline(NamedTuple):
    """Seconds of each operation and of each byte; 0 where it never decides."""

    per_flop: float
    per_byte: float

    def seconds(self, flops: float, bytes: float) -> float:
        """The longer of both."""
        return max(flops * self.per_flop, bytes * self.per_byte)


def roofline(flops: Any, bytes: Any, seconds: Any, before: Any = 0.0) -> Roofline:
    """The roofline under which ``before + max(flops · p, bytes · b)`` is nearest to ``seconds``, relatively.

    Measurements with more operations to a byte than others are bound by operations before those are. Every such cut
    is tried that leaves two at least on either side, as one alone tells nothing; first those that leave none.
    """
    F, B, t = (np.asarray(column, float) for column in (flops, bytes, seconds))
    rest = 1 - np.asarray(before) / t
    order = np.argsort(F / np.maximum(B, 1.0))
    best, found = math.inf, Roofline(0.0, 0.0)
    for cut in (0, len(order), *range(2, len(order) - 1)):
        one = Roofline(_slope(F / t, rest, order[cut:]), _slope(B / t, rest, order[:cut]))
        error = float(np.sum((np.maximum(F * one.per_flop, B * one.per_byte) / t - rest) ** 2))
        if error < best - 1e-12:
            best, found = error, one
    return found


def _slope(amounts: np.ndarray, rest: np.ndarray, chosen: np.ndarray) -> float:
    rows = amounts[chosen]
    return max(0.0, float(rows @ rest[chosen] / (rows @ rows))) if rows.any() else 0.0


def halves(samples: Sequence[T]) -> tuple[list[T], list[T]]:
    """What is fitted, and what the fit is judged by: every second one, in the order of their sizes."""
    return list(samples[::2]), list(samples[1::2])


def held_out(samples: Sequence[T], fit: Callable[[list[T]], Seconds[T]], seconds: Seconds[T]) -> list[float]:
    """Relative errors of a fit on every second sample, on the others; none where fewer than three tell nothing.

    Args:
        samples: in the order of their sizes. fit: makes a prediction of samples. seconds: what was measured.
    """
    seen, unseen = halves(samples)
    if len(seen) < 2:
        return []
    predict = fit(seen)
    return [predict(sample) / seconds(sample) - 1 for sample in unseen]


def noise(seconds: Sequence[float]) -> float:
    """The distance of the quartiles of repeated measurements over their median: errors below it mean nothing."""
    lower, middle, upper = np.percentile(seconds, (25, 50, 75))
    return float((upper - lower) / middle)
