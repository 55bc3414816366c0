"""Columns as bytes for the browser: numbers as in memory, text as numbers into a list of distinct words, images by row.

Layout: four bytes with the length of the head, the head as JSON, padded so that columns start at multiples of 8 bytes,
then the columns. The browser makes typed arrays over these bytes without parsing them, which needs the alignment.
``unpack`` in ``live.js`` must change with this file.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from pathways_widgets.drawing.views import Columns, Words

_TYPES = ("u1", "i4", "u4", "f4", "f8")


def pack(columns: Columns) -> bytes:
    """Return columns of numbers or text as one block of bytes, little-endian."""
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
    """Return head and columns as one block.

    Starts count from the first byte of the block, so they depend on the length of the head, which contains them: room
    is left for the digits that they may gain.
    """
    head_length = len(json.dumps(head)) + 16 * len(head)
    # Four bytes of length come first; columns begin where a browser can lay arrays of eight bytes over them.
    head_length += -(head_length + 4) % 8
    for entry in head.values():
        entry["start"] += head_length + 4
    text = json.dumps(head).encode().ljust(head_length)
    return b"".join([struct.pack("<I", head_length), text, *blocks])


def _encode(values: Any) -> tuple[dict[str, Any], np.ndarray]:
    """Return the head's entry of a column, and the numbers to send; types the browser does not know become floats."""
    if isinstance(values, Words):
        return {"type": "u4", "size": len(values), "words": list(values.words)}, values.numbers.astype(np.uint32)
    array = np.asarray(values)
    if array.dtype.kind in "UO":
        words: dict[str, int] = {}
        # A word is sent once, however many rows have it.
        numbers = [words.setdefault(word, len(words)) for word in map(str, values)]
        array = np.array(numbers, np.uint32)
        return {"type": "u4", "size": len(array), "words": list(words)}, array
    kind = array.dtype.str[1:]
    if kind not in _TYPES:
        array = array.astype(np.float64)
        kind = "f8"
    # Images are rows of pixels, one after another; the browser cuts them by their width.
    wide = {"width": array.shape[1]} if array.ndim > 1 else {}
    return {"type": kind, "size": array.size} | wide, array


def _padded(block: bytes) -> bytes:
    """Return the block filled up to a multiple of 8 bytes."""
    return block.ljust(len(block) + -len(block) % 8, b"\0")
