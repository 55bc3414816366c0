"""Costs of token slices: tables and formulas behind one function, its values checked, and a formula of four constants.

The seconds ``t(b, l, c)`` are those of one slice on one stage, forward and backward together, with what it sends: ``b``
sequences, ``l`` tokens of each, after ``c`` tokens that were processed before (TeraPipe, section 3.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pathways_nb.errors import UsageError
from pathways_nb.parallel.terapipe.problem import Problem
from pathways_nb.util.words import a_type_of, counted


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
        self._seconds: _CostFormula | _CostTable
        if callable(cost):
            self.most_sequences = min(problem.batch, getattr(cost, "most_sequences", problem.batch))
            self._seconds = _CostFormula(cost)
        else:
            table = table_of(cost, problem)
            self.most_sequences = min(len(table), problem.batch)
            self._seconds = _CostTable(table, problem.granularity)

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
            value = float(seconds[wrong][first])
            raise UsageError(
                f"{self._seconds.describe(sequences, tokens, context)} = {value} "
                f"{'is negative' if value < 0 else 'is a hole'}, the seconds of {counted(sequences, 'sequence')} with "
                f"{counted(tokens, 'token')} after {context}, and {self.problem} need them. Give each slice a finite "
                f"time of at least 0, a large one where it must not be used."
            )
        return seconds


class _CostFormula:
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

    def describe(self, sequences: int, tokens: int, context: int) -> str:
        """Return the call for one slice as text, for errors."""
        return f"cost({sequences}, {tokens}, {context})"


class _CostTable(NamedTuple):
    """A table of seconds, (groups, units, units), in units of the granularity."""

    table: np.ndarray
    granularity: int

    def __call__(self, sequences: np.ndarray, tokens: np.ndarray, context: np.ndarray) -> np.ndarray:
        """Return the seconds of slices."""
        return self.table[sequences - 1, tokens // self.granularity - 1, context // self.granularity]

    def describe(self, sequences: int, tokens: int, context: int) -> str:
        """Return the element for one slice as text, for errors."""
        return f"cost[{sequences - 1}, {tokens // self.granularity - 1}, {context // self.granularity}]"


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


class TableCost:
    """A table as a function, so that shorter sequences and longer units can be planned with it.

    Args:
        table: as for ``plan``, of the longest sequence.
        granularity: tokens of a unit of the table.

    Attributes:
        length: tokens of the longest sequence.
        most_sequences: of the largest group.

    Raises:
        UsageError: no such table.
    """

    def __init__(self, table: Any, granularity: int):
        # A table has a row for each length, which says how long the sequence is.
        units = np.shape(table)[-2] if np.ndim(table) in (2, 3) else 1
        problem = Problem(units * granularity, 1, 1, granularity)
        self._table, self.granularity, self.length = table_of(table, problem), granularity, problem.length
        self.most_sequences = len(self._table)

    def __call__(self, sequences: Any, tokens: Any, context: Any) -> np.ndarray:
        """Return the seconds of slices.

        Raises:
            UsageError: tokens that the table does not have.
        """
        # Looked up in the units of the table, which may be smaller than those of the plan.
        unit = self.granularity
        if np.any(tokens % unit) or np.any(context % unit) or np.any(tokens + context > self.length):
            raise UsageError(
                f"the table of costs has {self.length} tokens in units of {unit}: take a length of at most "
                f"{self.length}, and a granularity that is a multiple of {unit}."
            )
        return self._table[sequences - 1, tokens // unit - 1, context // unit]


class Hinge(NamedTuple):
    """Seconds ``max(floor, fixed + per_token · b l + per_pair · b l (l + c))``, a cost that ``plan`` takes.

    The values without arguments are fitted to the paper's equal slices of 175B (TeraPipe, setting 9).

    Args:
        floor: seconds of the shortest slices.
        fixed: seconds of each slice above the floor.
        per_token: seconds of a token.
        per_pair: seconds of a pair of a token and one that it may attend to.
    """

    floor: float = 0.00975
    fixed: float = 0.006
    per_token: float = 4.31e-5
    per_pair: float = 1.17e-9

    def __call__(self, sequences: Any, tokens: Any, context: Any) -> np.ndarray:
        """Return the seconds of slices, by their sequences, tokens and context."""
        size = sequences * tokens
        return np.maximum(self.floor, self.fixed + self.per_token * size + self.per_pair * size * (tokens + context))
