"""An opened launch in JSON, so that it can be kept on disk and need not be compiled, parsed and priced again."""

from __future__ import annotations

from typing import Any

import numpy as np

from pathways_nb.cost.launch.launch_memory import LargeBuffer, LaunchMemory
from pathways_nb.cost.launch.launch_timing import LANES, LaunchSeconds
from pathways_nb.cost.launch.memory_levels import MemoryLevels
from pathways_nb.cost.launch.opened_launch import OpenedLaunch
from pathways_nb.trace.launch_ops import OP_STORED, Ops
from pathways_nb.trace.op_forms import OP_LABELS
from pathways_nb.util.json_forms import Form, list_of, optional, record, row
from pathways_nb.util.json_text import DamagedError, Field

_COLUMNS = ("label", "start", "end")
"""What differs between the ops of a launch: they are all of run 0 and of the first device."""


def _read_ops(field: Field) -> Ops:
    labels = OP_LABELS.read(field["labels"])
    try:
        columns: list[np.ndarray] = [np.array(field[name].numbers(), OP_STORED[name]) for name in _COLUMNS]
    except OverflowError:
        raise DamagedError(f"{field.where} has a number that is too large") from None
    count = len(columns[0])
    if any(len(one) != count for one in columns) or (count and columns[0].max() >= len(labels)):
        raise DamagedError(f"{field.where} has columns that do not belong together")
    stored: dict[str, np.ndarray] = {name: np.zeros(count, dtype) for name, dtype in OP_STORED.items()}
    return Ops(labels, {**stored, **dict(zip(_COLUMNS, columns, strict=True))})


def _write_ops(ops: Ops) -> dict[str, Any]:
    return {"labels": OP_LABELS.write(ops.labels), **{name: ops.stored(name).tolist() for name in _COLUMNS}}


_AMOUNTS: Form[np.ndarray] = Form(lambda field: np.array(field.numbers()), lambda values: values.tolist())
_BY_CATEGORY: Form[dict[str, np.ndarray]] = Form(
    lambda field: {name: _AMOUNTS.read(field[name]) for name in field.table()},
    lambda found: {name: _AMOUNTS.write(one) for name, one in found.items()},
)
_SECONDS = record(
    LaunchSeconds,
    exposed=Field.number,
    ordered=Field.number,
    hidden=Field.number,
    busy=Form(lambda field: {name: field[name].number() for name in LANES}, dict),
)
_BUFFER = record(LargeBuffer, bytes=Field.whole, name=Field.text, op=Field.text, shape=Field.text, line=Field.text)
_MEMORY = record(
    LaunchMemory,
    peak=Field.whole,
    arguments=Field.whole,
    results=Field.whole,
    temporaries=Field.whole,
    buffers=list_of(_BUFFER),
    available=optional(Field.whole),
    refused=Field.text,
    levels=optional(record(MemoryLevels, times=_AMOUNTS, end=Field.number, bytes=_BY_CATEGORY)),
)
LAUNCH: Form[OpenedLaunch] = record(
    OpenedLaunch,
    ops=Form(_read_ops, _write_ops),
    seconds=_SECONDS,
    memory=optional(_MEMORY),
    basis=Field.text,
    notes=Field.texts,
    backward=Field.text,
    exposed=list_of(row(tuple, Field.text, Field.number)),
)
"""The form of a launch whose ops are in seconds since it began, of run 0 and device 0."""
