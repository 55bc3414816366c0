"""The event record in a saved run: labels and columns of numbers, each checked against the range that readers rely on.

Views, metrics and exports index with these numbers without further checks: a label's island must exist, its devices
must lie on it, codes must be known. So everything is checked once here, when a file is read, and errors name the label
or column and what it may be. Sizes were checked before, in ``column_archive``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pathways_nb.timing.waits import WHY
from pathways_nb.trace.label_fields import FIELDS, MOST_SECONDS
from pathways_nb.trace.record import LABEL_COLUMNS, STORED, TUPLES, UNKNOWN, Events
from pathways_nb.trace.rows import QUALITIES, STATUSES, Label
from pathways_nb.util.json_text import DamagedError, Field, shortened

MOST_EVENTS = 2**24
"""Largest number of events: sixteen million, which are 436 MB of columns."""
_ON_DEVICES = frozenset({"compute", "collective", "transfer", "memory", "host"})


def events_of(labels: Field, columns: dict[str, np.ndarray], islands: Sequence[int]) -> Events:
    """Return the events of a file.

    Args:
        labels: the labels, as ``save`` wrote them.
        columns: the columns of ``STORED``, equally long.
        islands: number of devices of each island.

    Raises:
        DamagedError: naming the label or column that is wrong, and what it may be.
    """
    made = _labels(labels, islands)
    # An older file has no columns of causes: each is unknown.
    columns = {**{name: np.full(len(columns["label"]), one, STORED[name]) for name, one in UNKNOWN.items()}, **columns}
    known = {"label": len(made), "quality": len(QUALITIES), "status": len(STATUSES)}
    for name, choices in {**known, "why": len(WHY), "released_label": len(made)}.items():
        column = columns[name]
        # Codes and positions are indices, which a negative number would count from the end; -1 is unknown.
        if len(column) and not UNKNOWN.get(name, 0) <= column.min() <= column.max() < choices:
            raise DamagedError(f"column {name!r} has numbers from {column.min()} to {column.max()}, of {choices}")
    for name in ("run", "released_run"):
        if len(columns[name]) and columns[name].min() < -1:
            raise DamagedError(f"column {name!r} has {columns[name].min()}, not a number from -1 on")
    check_times(columns)
    return Events(made, columns, np.arange(len(columns["label"]), dtype=np.int64))


def check_times(columns: Mapping[str, np.ndarray]) -> None:
    """Refuse starts and ends that are not finite, or too far from the beginning of the run.

    Raises:
        DamagedError: naming the first such event.
    """
    for name in ("start", "end"):
        wrong = ~(np.abs(columns[name]) <= MOST_SECONDS)  # written so that NaN is refused as well
        if wrong.any():
            at = int(wrong.argmax())
            raise DamagedError(f"{name} of event {at} is {columns[name][at]} s, not a time within {MOST_SECONDS:g} s")


def _labels(field: Field, islands: Sequence[int]) -> list[Label]:
    """Return the labels, checked a column at a time: there may be a million, and a check of each alone is slow.

    Raises:
        DamagedError: naming the first label and field that is wrong.
    """
    # (labels,) lists of values, then by column, (labels,) values each.
    rows = [_row(one) for one in field.rows()]
    columns = dict(zip(LABEL_COLUMNS, zip(*rows, strict=True), strict=True)) if rows else {}
    for name, values in columns.items():
        fits, wanted = FIELDS[name]
        wrong = next((at for at, value in enumerate(values) if not fits(value)), None)
        if wrong is not None:
            raise DamagedError(f"labels[{wrong}].{name} is {shortened(values[wrong])}, not {wanted}")
    made = [Label(*row) for row in rows]
    for at, label in enumerate(made):
        # Fields are of the right type by now; this compares them with the islands.
        if wrong_place := _misplaced(label, islands):
            raise DamagedError(f"labels[{at}], of kind {label.kind!r}, {wrong_place}")
    return made


def _row(field: Field) -> list[Any]:
    """Return the values of one label, with tuples in place of JSON's lists.

    Raises:
        DamagedError: it is no list of the right length.
    """
    values = field.value
    if isinstance(values, list) and len(values) in _OLDER:
        # Columns were added at the end, one after another, so the length says which an older file lacks.
        values = [*values, *_ABSENT[len(values) - len(LABEL_COLUMNS) :]]
    if not isinstance(values, list) or len(values) != len(LABEL_COLUMNS):
        raise DamagedError(f"{field.where} is {shortened(field.value)}, not a list of {len(LABEL_COLUMNS)} values")
    # Labels are keys of tables, so their parts must be hashable.
    for at in _TUPLE_POSITIONS:
        values[at] = tuple(values[at]) if isinstance(values[at], list) else values[at]
    return values


def _misplaced(label: Label, islands: Sequence[int]) -> str:
    """Return what is wrong with the island and devices of a label; empty if nothing is."""
    if label.island >= len(islands) or (label.island < 0 and label.kind in _ON_DEVICES):
        return f"is on island {label.island} of {len(islands)}"
    if label.island >= 0 and label.device + label.devices > islands[label.island]:
        last = label.device + label.devices - 1
        return f"is on devices {label.device} to {last} of island {label.island}, which has {islands[label.island]}"
    return ""


_ABSENT: tuple[Any, ...] = ([], 0.0, "", -1, "")
"""What the last columns are in an older file: it lacks ``stream``, and may lack ``host``, ``category``, ``links`` and
``latency``."""
_OLDER = tuple(map(LABEL_COLUMNS.index, ("links", "category", "host", "stream")))
_TUPLE_POSITIONS = tuple(map(LABEL_COLUMNS.index, TUPLES))
