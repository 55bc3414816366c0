"""A table of seconds as a function, so that shorter sequences and longer units can be planned with it."""

from __future__ import annotations

from typing import Any

import numpy as np

from pathways_nb.errors import UsageError
from pathways_nb.parallel.terapipe.problem import Problem
from pathways_nb.parallel.terapipe.slice_costs import table_of


class TableCost:
    """The seconds of slices, looked up in a table.

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
        unit = self.granularity
        if np.any(tokens % unit) or np.any(context % unit) or np.any(tokens + context > self.length):
            raise UsageError(
                f"the table of costs has {self.length} tokens in units of {unit}: take a length of at most "
                f"{self.length}, and a granularity that is a multiple of {unit}."
            )
        return self._table[sequences - 1, tokens // unit - 1, context // unit]
