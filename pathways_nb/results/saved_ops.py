"""The ops inside launches in a saved run: their labels as JSON, their numbers as columns, checked when they are read.

A file without ops, such as one that an older version wrote, gives none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pathways_nb.results.column_archive import Archive
from pathways_nb.results.saved_record import MOST_EVENTS, check_times
from pathways_nb.trace.launch_ops import OP_STORED, Ops
from pathways_nb.trace.op_forms import OP_LABELS
from pathways_nb.util.json_text import DamagedError, Field

_PREFIX = "op_"
"""Beginning of the names of columns, which events have as well."""


def labels_of(ops: Ops) -> Any:
    """Return the labels to write as JSON; ``None`` if there are no ops."""
    return OP_LABELS.write(ops.labels) if len(ops) else None


def columns_of(ops: Ops) -> dict[str, np.ndarray]:
    """Return the columns to write, by their names in the file; none if there are no ops.

    Raises:
        DamagedError: there are more than ``read`` accepts.
    """
    if len(ops) > MOST_EVENTS:
        raise DamagedError(f"it has {len(ops)} ops, more than {MOST_EVENTS}")
    return {_PREFIX + name: ops.stored(name) for name in OP_STORED} if len(ops) else {}


def read(labels: Field, archive: Archive, islands: Sequence[int]) -> Ops:
    """Return the ops of a file.

    Args:
        labels: what ``labels_of`` returned.
        archive: the open file.
        islands: number of devices of each island.

    Raises:
        DamagedError: naming the label or column that is wrong.
    """
    if labels.value is None:
        return Ops()
    made = OP_LABELS.read(labels)
    wanted: dict[str, Any] = {_PREFIX + name: dtype for name, dtype in OP_STORED.items()}
    found = archive.columns(wanted, MOST_EVENTS, "ops")
    stored = {name: found[_PREFIX + name] for name in OP_STORED}
    # All are indices of views and metrics, which check nothing: numbers out of range must not get that far.
    _check_range("label", stored["label"], len(made), 0)
    _check_range("run", stored["run"], 2**31, -1)
    _check_range("island", stored["island"], len(islands), 0)
    if len(stored["label"]):
        # (ops,) number of devices of the island that each op is on.
        _check_range("device", stored["device"], np.array(islands)[stored["island"]], 0)
    check_times(stored)
    return Ops(made, stored)


def _check_range(name: str, values: np.ndarray, end: int | np.ndarray, begin: int) -> None:
    """Refuse numbers that are not from ``begin`` to before ``end``."""
    wrong = (values < begin) | (values >= end)
    if wrong.any():
        at = int(wrong.argmax())
        raise DamagedError(f"column '{_PREFIX}{name}' has {values[at]} at {at}, which is out of range")
