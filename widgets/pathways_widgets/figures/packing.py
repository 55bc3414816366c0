"""Columns as bytes for the browser: numbers as they lie in memory, text as numbers into a list of distinct words,
pictures row by row.

Layout: four bytes of head length, the head as JSON (padded so that columns start at multiples of 8 bytes), columns.
``unpack`` in ``live.js`` is the other side.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from pathways_widgets.drawing.views import Columns, Words

_TYPES = ("u1", "i4", "u4", "f4", "f8")


def pack(columns: Columns) -> bytes:
    """Columns of numbers or text as one block of bytes, little-endian."""
    head: dict[str, dict[str, Any]] = {}
    blocks: list[bytes] = []
    for name, values in columns.items():
        head[name], array = _encode(values)
        blocks.append(_padded(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()))
    start = 0
    for entry, block in zip(head.values(), blocks, strict=True):
        entry["start"] = start
        start += len(block)
    return _joined(head, blocks)


def _joined(head: dict[str, dict[str, Any]], blocks: list[bytes]) -> bytes:
    """Starts count from the first byte of all, so the head must know its own length: leave it room."""
    head_length = len(json.dumps(head)) + 16 * len(head)
    head_length += -(head_length + 4) % 8
    for entry in head.values():
        entry["start"] += head_length + 4
    text = json.dumps(head).encode().ljust(head_length)
    return b"".join([struct.pack("<I", head_length), text, *blocks])


def _encode(values: Any) -> tuple[dict[str, Any], np.ndarray]:
    if isinstance(values, Words):
        return {"type": "u4", "size": len(values), "words": list(values.words)}, values.numbers.astype(np.uint32)
    array = np.asarray(values)
    if array.dtype.kind in "UO":
        words: dict[str, int] = {}
        numbers = [words.setdefault(word, len(words)) for word in map(str, values)]
        array = np.array(numbers, np.uint32)
        return {"type": "u4", "size": len(array), "words": list(words)}, array
    kind = array.dtype.str[1:]
    if kind not in _TYPES:
        array = array.astype(np.float64)
        kind = "f8"
    wide = {"width": array.shape[1]} if array.ndim > 1 else {}
    return {"type": kind, "size": array.size} | wide, array


def _padded(block: bytes) -> bytes:
    return block.ljust(len(block) + -len(block) % 8, b"\0")
