"""Digests of a saved state's files: written with the state, and compared before anything of it is used.

A digest is the size and the CRC-32 of a file. That finds what disks, copies and people do to files by accident: a
flipped bit for certain, other damage but for one case in four thousand million. It is no protection against somebody
who means to change a state. CRC-32 because it is the fastest in the standard library (a second for 4 GB, where BLAKE2
takes 4 and SHA-256 takes 2).
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pathways_nb.util.json_text import DamagedError, Field

_BLOCK = 2**20
"""Bytes of a file that are read at once."""


def sealed(about: dict[str, Any]) -> str:
    """Return the JSON text of an object, with the digest of the text without it."""
    return json.dumps({**about, "digest": _crc(json.dumps(about, indent=1).encode())}, indent=1)


def check_seal(about: Field) -> None:
    """Compare the object of such a text with its digest.

    Raises:
        DamagedError: it has none, or is another object than was written.
    """
    written, rest = about["digest"].whole(), {key: value for key, value in about.value.items() if key != "digest"}
    found = _crc(json.dumps(rest, indent=1).encode())
    if found != written:
        raise DamagedError(f"its digest is {found}, and {written} was written")


def of_files(folder: Path) -> dict[str, list[int]]:
    """Return size and CRC-32 of each file below a folder, by its path there."""
    files = [Path(where) / name for where, _, names in os.walk(folder) for name in names]
    return {file.relative_to(folder).as_posix(): _of_file(file) for file in files}


def changed_files(folder: Path, written: Field) -> dict[str, str]:
    """Return which files are not as they were written, and what is wrong with each.

    Args:
        folder: of the state.
        written: what ``of_files`` returned then.

    Raises:
        DamagedError: it is not such an object.
    """
    before = {name: list(written[name].wholes()) for name in written.table()}
    return {name: why for name, digest in before.items() if (why := _difference(folder / name, digest))}


def _difference(file: Path, written: list[int]) -> str:
    """Return what is wrong with a file; nothing if it is as it was written."""
    try:
        size, crc = _of_file(file)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if [size, crc] == written:
        return ""
    return "has other bytes" if size == written[0] else f"has {size} bytes instead of {written[0]}"


def _of_file(path: Path) -> list[int]:
    size = crc = 0
    for block in _blocks(path):
        size, crc = size + len(block), _crc(block, crc)
    return [size, crc]


def _blocks(path: Path) -> Iterator[memoryview]:
    """Yield the bytes of a file."""
    # One buffer for all blocks, so that hashing is all that reading a large state adds.
    buffer = memoryview(bytearray(_BLOCK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            yield buffer[:count]


def _crc(data: bytes | memoryview, before: int = 0) -> int:
    return zlib.crc32(data, before)
