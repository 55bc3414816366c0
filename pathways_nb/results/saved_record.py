"""The record in a saved run: labels and columns of numbers, each within the range that its readers rely on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pathways_nb.trace.record import KINDS, LABEL_COLUMNS, QUALITIES, STATUSES, TUPLES, Events, Label
from pathways_nb.util.json_text import LARGEST, DamagedError, Field, is_text, is_whole, shortened

MOST_EVENTS = 2**24
"""Sixteen million: 436 MB of columns."""
MOST_SECONDS = 1e12
"""Times lie this near to the beginning of their run (30,000 years), where sums and differences keep their digits."""
_POSITION = 2**31 - 1
"""Node ids, microbatches and the like are columns of 32 bits."""
_ON_DEVICES = frozenset({"compute", "collective", "transfer", "memory"})


def events_of(labels: Field, columns: dict[str, np.ndarray], islands: Sequence[int]) -> Events:
    """The events of a file.

    Args:
        labels: as ``save`` wrote them. columns: those of ``STORED``, equally long.
        islands: number of devices of each.

    Raises:
        DamagedError: naming the label or column that is wrong, and what it may be.
    """
    made = _labels(labels, islands)
    for name, choices in (("label", len(made)), ("quality", len(QUALITIES)), ("status", len(STATUSES))):
        column = columns[name]
        if len(column) and not 0 <= column.min() <= column.max() < choices:
            raise DamagedError(f"column {name!r} has numbers from {column.min()} to {column.max()}, of {choices}")
    if len(columns["run"]) and columns["run"].min() < -1:
        raise DamagedError(f"column 'run' has {columns['run'].min()}, not a number from -1 on")
    check_times(columns)
    return Events(made, columns, np.arange(len(columns["label"]), dtype=np.int64))


def check_times(columns: Mapping[str, np.ndarray]) -> None:
    """Starts and ends must be times of a run.

    Raises:
        DamagedError: one is not finite, or too far away.
    """
    for name in ("start", "end"):
        wrong = ~(np.abs(columns[name]) <= MOST_SECONDS)  # NaN is wrong, too
        if wrong.any():
            at = int(wrong.argmax())
            raise DamagedError(f"{name} of event {at} is {columns[name][at]} s, not a time within {MOST_SECONDS:g} s")


def _labels(field: Field, islands: Sequence[int]) -> list[Label]:
    """Checked a column at a time: there may be a million."""
    rows = [_row(one) for one in field.rows()]
    columns = dict(zip(LABEL_COLUMNS, zip(*rows, strict=True), strict=True)) if rows else {}
    for name, values in columns.items():
        fits, wanted = _FITS[name]
        wrong = next((at for at, value in enumerate(values) if not fits(value)), None)
        if wrong is not None:
            raise DamagedError(f"labels[{wrong}].{name} is {shortened(values[wrong])}, not {wanted}")
    made = [Label(*row) for row in rows]
    for at, label in enumerate(made):
        if wrong_place := _misplaced(label, islands):
            raise DamagedError(f"labels[{at}], of kind {label.kind!r}, {wrong_place}")
    return made


def _row(field: Field) -> list[Any]:
    values = field.value
    if isinstance(values, list) and len(values) == LABEL_COLUMNS.index("links"):  # written before labels knew them
        values = [*values, [], 0.0]
    if not isinstance(values, list) or len(values) != len(LABEL_COLUMNS):
        raise DamagedError(f"{field.where} is {shortened(field.value)}, not a list of {len(LABEL_COLUMNS)} values")
    for at in _TUPLE_POSITIONS:
        values[at] = tuple(values[at]) if isinstance(values[at], list) else values[at]
    return values


def _misplaced(label: Label, islands: Sequence[int]) -> str:
    """What is wrong with where it happens; empty if nothing is."""
    if label.island >= len(islands) or (label.island < 0 and label.kind in _ON_DEVICES):
        return f"is on island {label.island} of {len(islands)}"
    if label.island >= 0 and label.device + label.devices > islands[label.island]:
        last = label.device + label.devices - 1
        return f"is on devices {label.device} to {last} of island {label.island}, which has {islands[label.island]}"
    return ""


_TUPLE_POSITIONS = tuple(map(LABEL_COLUMNS.index, TUPLES))


def _is_amount(value: object) -> bool:
    """Whether it is a number from 0 on that a float holds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1e300


def _whole(low: int, high: int) -> tuple[Callable[[Any], bool], str]:
    return lambda value: is_whole(value, low, high), f"a whole number from {low} to {high}"


_FITS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "kind": (lambda value: value in KINDS, f"one of {', '.join(KINDS)}"),
    **dict.fromkeys(("name", "program", "client", "place", "line", "basis"), (is_text, "text")),
    "route": (lambda value: value in ("", "host", "local", "ICI", "DCN"), "one of host, local, ICI, DCN or empty"),
    **dict.fromkeys(("node", "stage", "microbatch", "token_slice", "island"), _whole(-1, _POSITION)),
    **dict.fromkeys(("device", "devices"), _whole(0, _POSITION)),
    "bytes": _whole(0, LARGEST),
    "flops": (_is_amount, "a number from 0 on"),
    "latency": (lambda value: _is_amount(value) and value <= MOST_SECONDS, "seconds from 0 on"),
    "parents": (
        lambda value: isinstance(value, tuple) and all(is_whole(one, 0, _POSITION) for one in value),
        "a list of node ids",
    ),
    "links": (lambda value: isinstance(value, tuple) and all(map(is_text, value)), "a list of texts"),
}
