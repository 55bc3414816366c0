"""The paper's form of a slice's cost, fitted to measured slices (TeraPipe, section 3.3, equation 9).

    t(b, l, c) = t(b, l, 0) + a0 + a1 b l + a2 b c + a3 b l c    for c > 0

holds for ``b`` sequences of ``l`` tokens after ``c`` tokens. Without context,
measured seconds are interpolated: linearly between measured lengths, then between measured numbers of sequences. What
the context adds is fitted, with coefficients of at least 0, because no context makes a slice faster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from pathways_nb.cost.calibration.fitting import nonnegative
from pathways_nb.errors import UsageError, is_index, is_number
from pathways_nb.util.json_text import shortened
from pathways_nb.util.text_table import Printed, Table
from pathways_nb.util.words import counted


class SliceSample(NamedTuple):
    """A measured slice: its sequences, tokens of each, tokens before it, and seconds."""

    sequences: int
    tokens: int
    context: int
    seconds: float


Curves = dict[int, tuple[np.ndarray, np.ndarray]]
"""For each measured number of sequences the measured lengths, ascending, and the seconds without context."""


@dataclass(frozen=True, repr=False, eq=False)
class FittedCost(Printed):
    """Seconds of token slices, fitted to measurements; a function that ``plan`` takes as its cost.

    A slice shorter than the shortest one measured takes as long as that.

    Attributes:
        curves: for each measured number of sequences the measured lengths and the seconds without context.
        coefficients: a0 (s), a1 (s / token), a2 (s / token), a3 (s / token²).
        error: mean relative error on sizes that a fit to the others has not seen; None for too few sizes.
        length_error: the same for slices without context.
        context_error: the same for slices with context.
        noise: median distance of the quartiles of repeated measurements over their median; None where none are.
    """

    curves: Curves
    coefficients: tuple[float, float, float, float]
    error: float | None = None
    length_error: float | None = None
    context_error: float | None = None
    noise: float | None = None

    @property
    def most_sequences(self) -> int:
        """Sequences of the largest group that was measured."""
        return max(self.curves)

    def __call__(self, sequences: Any, tokens: Any, context: Any) -> np.ndarray:
        """Return the seconds of slices.

        Args:
            sequences: of each slice.
            tokens: of each sequence in the slice.
            context: tokens before the slice.

        Raises:
            UsageError: more tokens or sequences than were measured.
        """
        sequences, tokens, context = np.broadcast_arrays(sequences, tokens, context)
        # Equation 9 is for c > 0: a0 is no part of a slice without context.
        added = _terms(sequences, tokens, context) @ np.array(self.coefficients)
        return _without_context(self.curves, sequences, tokens) + np.where(context > 0, added, 0.0)

    def _table(self) -> Table:
        a0, a1, a2, a3 = self.coefficients
        points = sum(len(lengths) for lengths, _ in self.curves.values())
        title = (
            f"t(b, l, c) = t(b, l, 0) + {a0:.3g} s + {a1:.3g} s · b l + {a2:.3g} s · b c + {a3:.3g} s · b l c; "
            f"t(b, l, 0) between {counted(points, 'measured length')}"
        )
        errors = {
            "without context": self.length_error,
            "with context": self.context_error,
            "all": self.error,
            "noise of repeats": self.noise,
        }
        rows = [(name, "unknown" if error is None else f"{error:.1%}") for name, error in errors.items()]
        return Table(title, ("sizes not seen", "mean error"), rows)


def fit(samples: Iterable[Sequence[float]]) -> FittedCost:
    """Return the paper's form of the cost, fitted to measured slices, with its error on sizes it has not seen.

    Args:
        samples: (sequences, tokens, context, seconds) of each slice, some of them without context; of several
            measurements of one slice the median counts.

    Raises:
        UsageError: no slices with context, none without, or something that is no measured slice.
    """
    measured = _medians(samples)
    plain, others = [one for one in measured if not one.context], [one for one in measured if one.context]
    if not plain or not others:
        raise UsageError(
            f"terapipe.fit: {len(plain)} slices without context and {len(others)} with context; both are needed: "
            f"give rows (sequences, tokens, context, seconds) with context 0, and with context above 0."
        )
    curves = _curves(plain)
    errors = [_length_errors(plain), _context_errors(curves, others)]
    length_error, context_error, error = (_mean(each) for each in (*errors, errors[0] + errors[1]))
    # The cost itself is fitted to all slices; only its errors come from fits to a part of them.
    return FittedCost(curves, _coefficients(curves, others), error, length_error, context_error)


def _medians(samples: Iterable[Sequence[float]]) -> list[SliceSample]:
    """Return the median of each measured slice, in the order of their sizes.

    Raises:
        UsageError: a row is no measured slice.
    """
    found: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for row in samples:
        fits = len(row) == 4 and all(is_index(size) or float(size).is_integer() for size in row[:3])
        if not (fits and row[0] >= 1 and row[1] >= 1 and row[2] >= 0 and is_number(row[3]) and row[3] > 0):
            raise UsageError(
                f"terapipe.fit: {shortened(tuple(row))} is no measured slice: (sequences, tokens, context, seconds) "
                f"with at least 1 sequence and 1 token, and seconds above 0."
            )
        found[int(row[0]), int(row[1]), int(row[2])].append(float(row[3]))
    return [SliceSample(*key, median(seconds)) for key, seconds in sorted(found.items())]


def _curves(plain: Iterable[SliceSample]) -> Curves:
    """Return the measured curves of slices without context."""
    rows: dict[int, list[SliceSample]] = defaultdict(list)
    # Ascending lengths, as np.interp needs them.
    for one in sorted(plain):
        rows[one.sequences].append(one)
    return {
        count: (np.array([one.tokens for one in found]), np.array([one.seconds for one in found]))
        for count, found in rows.items()
    }


def _without_context(curves: Curves, sequences: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Return the seconds without context, interpolated."""
    counts = np.array(list(curves))
    # Of the longest lengths the shortest: beyond it one of the curves would be extrapolated.
    longest = min(lengths[-1] for lengths, _ in curves.values())
    if tokens.max() > longest or sequences.max() > counts[-1] or sequences.min() < counts[0]:
        raise UsageError(
            f"a slice of {sequences.max()} × {tokens.max()} tokens: measured are {counts[0]} to {counts[-1]} sequences "
            f"of up to {longest} tokens. Measure slices that large, or plan for less."
        )
    # (curves, slices) seconds by the number of sequences of each curve
    found = np.stack([np.interp(tokens, lengths, seconds) for lengths, seconds in curves.values()])
    # (slices,) where each lies between two curves: the lower one, and the share of the way to the next.
    place = np.interp(sequences, counts, np.arange(len(counts)))
    below = np.minimum(place.astype(int), max(0, len(counts) - 2))
    above, share = np.minimum(below + 1, len(counts) - 1), place - below
    lower, upper = (np.take_along_axis(found, each[None], axis=0)[0] for each in (below, above))
    return lower * (1 - share) + upper * share


def _terms(sequences: np.ndarray, tokens: np.ndarray, context: np.ndarray) -> np.ndarray:
    """Return 1, b l, b c and b l c of each slice, as the last axis."""
    size = np.asarray(sequences * tokens, float)
    return np.stack([np.ones_like(size), size, sequences * context, size * context], axis=-1)


def _coefficients(curves: Curves, others: Sequence[SliceSample]) -> tuple[float, float, float, float]:
    """Return a0 to a3, fitted on slices with context."""
    sequences, tokens, context, seconds = (np.array(column) for column in zip(*others, strict=True))
    before = _without_context(curves, sequences, tokens)
    a0, a1, a2, a3 = nonnegative(_terms(sequences, tokens, context), seconds, before)
    return float(a0), float(a1), float(a2), float(a3)


def _length_errors(plain: Sequence[SliceSample]) -> list[float]:
    """Return the errors of lengths without context, each interpolated between its neighbours of the same group size."""
    found = []
    for count in {one.sequences for one in plain}:
        same = [one for one in plain if one.sequences == count]
        # The shortest and the longest have one neighbour only and are not left out.
        for before, left_out, after in zip(same, same[1:], same[2:], strict=False):
            share = (left_out.tokens - before.tokens) / (after.tokens - before.tokens)
            found.append((before.seconds * (1 - share) + after.seconds * share) / left_out.seconds - 1)
    return found


def _context_errors(curves: Curves, others: Sequence[SliceSample]) -> list[float]:
    """Return the errors of every second slice with context, by a fit to the others; none for fewer than four of those.

    Every second one as on a chessboard of lengths and contexts, so that both halves have all of both.
    """
    same: dict[tuple[int, int], int] = defaultdict(int)
    black: list[SliceSample] = []
    white: list[SliceSample] = []
    for one in others:
        length = one.sequences, one.tokens
        same[length] += 1
        (black if (len(same) + same[length]) % 2 else white).append(one)
    # Four coefficients need four slices.
    if len(black) < 4:
        return []
    cost = FittedCost(curves, _coefficients(curves, black))
    return [float(cost(one.sequences, one.tokens, one.context)) / one.seconds - 1 for one in white]


def _mean(errors: Sequence[float]) -> float | None:
    """Return the mean size of errors; None for none."""
    return fmean(map(abs, errors)) if errors else None
