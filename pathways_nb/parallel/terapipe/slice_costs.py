"""Costs of token slices: a table or a formula behind one function, and its values checked.

The seconds ``t(b, l, c)`` are those of one slice on one stage, forward and backward together, with what it sends: ``b``
sequences, ``l`` tokens of each, after ``c`` tokens that were processed before (TeraPipe, section 3.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pathways_nb.errors import UsageError
from pathways_nb.parallel.terapipe.problem import Problem
from pathways_nb.util.words import a_type_of, counted

Seconds = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Seconds of slices, by arrays of sequences, tokens and context."""


class SliceCosts:
    """The seconds of each slice of a problem.

    Attributes:
        most_sequences: size of the largest group of which the cost is known.

    Args:
        cost: an array, or a function of (sequences, tokens, context); see ``plan``.
        problem: its sizes.

    Raises:
        UsageError: neither of both, or an array of another shape than the problem's.
    """

    def __init__(self, cost: Any, problem: Problem):
        self.problem = problem
        self._seconds: Seconds
        self._describe: Callable[[int, int, int], str]
        if callable(cost):
            self.most_sequences = min(problem.batch, getattr(cost, "most_sequences", problem.batch))
            self._seconds, self._describe = _Formula(cost), _call_text
        else:
            table = table_of(cost, problem)
            self.most_sequences = min(len(table), problem.batch)
            self._seconds, self._describe = _looked_up(table, problem.granularity), _indexed(problem.granularity)

    def at(self, sequences: Any, tokens: Any, context: Any) -> np.ndarray:
        """Return the seconds of slices.

        Args:
            sequences: of each slice; 1 to ``most_sequences``.
            tokens: of each sequence in the slice.
            context: tokens before the slice.

        Raises:
            UsageError: the seconds of a slice are unknown, infinite or negative; the first one is named.
        """
        where = [np.asarray(each) for each in np.broadcast_arrays(sequences, tokens, context)]
        seconds = self._seconds(*where)
        wrong = ~(np.isfinite(seconds) & (seconds >= 0))
        if wrong.any():
            keys = [each[wrong] for each in where]
            # The one of the smallest sizes, whatever the order in which the planner asks.
            first = np.lexsort(keys[::-1])[0]
            sequences, tokens, context = (int(key[first]) for key in keys)
            self._refuse(sequences, tokens, context, float(seconds[wrong][first]))
        return seconds

    def _refuse(self, sequences: int, tokens: int, context: int, seconds: float) -> None:
        """Raise an error about a slice whose seconds cannot be used."""
        what = "is negative" if seconds < 0 else "is a hole"
        raise UsageError(
            f"{self._describe(sequences, tokens, context)} = {seconds} {what}, the seconds of "
            f"{counted(sequences, 'sequence')} with {counted(tokens, 'token')} after {context}, and {self.problem} "
            f"need them. Give each slice a finite time of at least 0, a large one where it must not be used."
        )


class _Formula:
    """A function of arrays, or of numbers, called for arrays of slices.

    Args:
        function: of (sequences, tokens, context).
    """

    def __init__(self, function: Callable[..., Any]):
        self._function, self._by_arrays = function, True

    def __call__(self, sequences: np.ndarray, tokens: np.ndarray, context: np.ndarray) -> np.ndarray:
        """Return the seconds of slices; a function that cannot take arrays is called once for each slice."""
        if self._by_arrays:
            try:
                found = np.asarray(self._function(sequences, tokens, context), float)
                # A formula may leave an argument out, so that its result is smaller.
                return np.broadcast_to(found, sequences.shape)
            except (TypeError, ValueError):  # such as the truth value of an array
                self._by_arrays = False
        each = zip(sequences.ravel().tolist(), tokens.ravel().tolist(), context.ravel().tolist(), strict=True)
        return np.array([self._function(*slice_) for slice_ in each], float).reshape(sequences.shape)


def table_of(cost: Any, problem: Problem) -> np.ndarray:
    """Return a table as an array by group size, length and context, in units of the granularity.

    Raises:
        UsageError: it is no table of numbers, or has another shape than the problem's.
    """
    try:
        table = np.asarray(cost, float)
    except (TypeError, ValueError):
        raise UsageError(
            f"cost is {a_type_of(cost)}: an array of seconds is needed, or a function of (sequences, tokens, context)."
        ) from None
    # (groups, n, n)
    table = table[None] if table.ndim == 2 else table
    n = problem.units
    if table.ndim != 3 or not len(table) or table.shape[1] != n or table.shape[2] not in (n, n + 1):
        raise UsageError(
            f"cost has the shape {np.shape(cost)}, but a length of {problem.length} tokens has {n} units of "
            f"granularity={problem.granularity}: give the shape (groups, {n}, {n}), or ({n}, {n}) for single "
            f"sequences, by sequences − 1, tokens / {problem.granularity} − 1, context / {problem.granularity}."
        )
    return table


def _looked_up(table: np.ndarray, granularity: int) -> Seconds:
    """Return the function that looks seconds up in a table."""
    return lambda sequences, tokens, context: table[sequences - 1, tokens // granularity - 1, context // granularity]


def _indexed(granularity: int) -> Callable[[int, int, int], str]:
    """Return the function that names an element of a table."""
    return lambda sequences, tokens, context: (
        f"cost[{sequences - 1}, {tokens // granularity - 1}, {context // granularity}]"
    )


def _call_text(sequences: int, tokens: int, context: int) -> str:
    """Return the call of a formula in words."""
    return f"cost({sequences}, {tokens}, {context})"
