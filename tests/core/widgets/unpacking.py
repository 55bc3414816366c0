"""What a figure sends to the page, as columns again."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np


def unpack(block: bytes) -> dict[str, list[Any]]:
    """What ``live.js`` does."""
    (length,) = struct.unpack_from("<I", block)
    columns = {}
    for name, where in json.loads(block[4 : 4 + length]).items():
        assert where["start"] % 8 == 0
        values = np.frombuffer(block, "<" + where["type"], where["size"], where["start"]).tolist()
        columns[name] = [where["words"][value] for value in values] if "words" in where else values
    return columns


def columns_sent(figure: Any, name: str) -> dict[str, list[Any]]:
    """The columns of a source as the page got them last."""
    return unpack(figure.get_state(f"_data_{name}")[f"_data_{name}"])
