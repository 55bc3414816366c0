"""Columns of the fields of labels, each made once.

A record of ten thousand devices has tens of thousands of labels, and one picture asks hundreds of times which of them
are of a kind or an island. So each field is numbered once, and a question compares numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pathways_nb.trace.rows import Label

_NUMBERS: dict[str, type] = {
    **dict.fromkeys(("node", "island", "device", "devices", "stage", "microbatch", "token_slice", "host"), np.int32),
    **{"bytes": np.int64, "flops": np.float64, "latency": np.float64},
}


class LabelColumns:
    """The fields of labels, by name.

    Args:
        labels: the labels; more may come at the end of the list.
    """

    def __init__(self, labels: Sequence[Label]):
        self.labels = labels
        self._made: dict[str, tuple[np.ndarray, dict[Any, int]]] = {}

    def column(self, name: str) -> np.ndarray:
        """Return a field of each label, as numbers or as Python's objects."""
        numbers, values = self._numbered(name)
        return column(list(values), _NUMBERS.get(name, object))[numbers]

    def fits(self, name: str, values: Sequence[object]) -> np.ndarray:
        """Return for each label whether a field is one of ``values``."""
        numbers, known = self._numbered(name)
        return np.isin(numbers, [known[value] for value in values if value in known])

    def _numbered(self, name: str) -> tuple[np.ndarray, dict[Any, int]]:
        """Return for each label the number of its value in a field, and the values with their numbers."""
        made, count = self._made.get(name), len(self.labels)
        if made is None or len(made[0]) != count:
            known: dict[Any, int] = {}
            of = (known.setdefault(getattr(label, name), len(known)) for label in self.labels[:count])
            made = self._made[name] = np.fromiter(of, np.int32, count), known
        return made


def column(values: Sequence[Any], dtype: Any = object) -> np.ndarray:
    """Return a one-dimensional array of ``values``; NumPy itself would make a table of tuples."""
    made = np.empty(len(values), dtype)
    made[:] = values
    return made
