"""Columns of numbers in a NumPy archive: read by name, and only if each is as large as the others say.

A compressed file of kilobytes can unpack to gigabytes. So the sizes that the archive's directory and each column's
header declare are compared with a bound and with each other before anything is unpacked. Nothing is evaluated.
"""

from __future__ import annotations

import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pathways_nb.util.json_text import DamagedError, said
from pathways_nb.util.words import counted

_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00(..)\{'descr': '([^']*)', 'fortran_order': (?:False|True), 'shape': \((\d{1,15}),\), \} *\n",
    re.DOTALL,
)
"""How NumPy's format 1.0 declares an array of one dimension."""
_LONGEST = 256
"""Bytes of such a header, at most; NumPy writes 128."""
_BEGIN, _END, _END_LENGTH = b"PK\x03\x04", b"PK\x05\x06", 22
"""How a zip archive begins, and its last record, which stands behind the directory and has no comment."""
_FAILURES = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError)
"""What ``zipfile`` raises for damaged bytes, for methods that it lacks, and for encryption."""


class _Declared(NamedTuple):
    """A column of the archive: how many numbers it has, and at which byte they begin."""

    info: zipfile.ZipInfo
    length: int
    begins: int


class Archive:
    """An archive that ``numpy.savez`` wrote; a context manager.

    Args:
        path: of the file.

    Raises:
        FileNotFoundError, PermissionError, IsADirectoryError. DamagedError: the file is no archive.
    """

    def __init__(self, path: str | Path):
        try:
            _check_whole(Path(path))
            self._zip = zipfile.ZipFile(path)
        except (FileNotFoundError, PermissionError, IsADirectoryError, DamagedError):
            raise
        except _FAILURES as error:
            raise DamagedError(f"it is no archive of columns ({said(error)})") from None

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def columns(self, wanted: Mapping[str, Any], most: int, unit: str) -> dict[str, np.ndarray]:
        """Columns of equal length; read-only.

        Args:
            wanted: name to type of each. most: how many numbers a column may have. unit: what they are, for errors.

        Raises:
            DamagedError: one is missing, has another type or length, or there are too many numbers.
        """
        declared = {name: self._declared(name, np.dtype(dtype)) for name, dtype in wanted.items()}
        counts = {name: column.length for name, column in declared.items()}
        if len(set(counts.values())) > 1:
            each = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise DamagedError(f"its columns are not equally long: {each}")
        if max(counts.values()) > most:
            raise DamagedError(f"it declares {max(counts.values())} {unit}; at most {most} are read")
        return {name: self._unpacked(name, column, wanted[name]) for name, column in declared.items()}

    def _declared(self, name: str, dtype: np.dtype) -> _Declared:
        info = self._zip.NameToInfo.get(f"{name}.npy")
        if info is None:
            raise DamagedError(f"there is no column {name!r}")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack more than is asked for
            raise DamagedError(
                f"column {name!r} is compressed by method {info.compress_type}, which run.save never uses"
            )
        try:
            with self._zip.open(info) as file:
                found = _HEADER.match(file.read(_LONGEST))
        except _FAILURES as error:
            raise DamagedError(f"column {name!r} cannot be read ({said(error)})") from None
        if found is None:
            raise DamagedError(f"column {name!r} does not begin as a column of numbers does")
        begins, descr, count = struct.unpack("<H", found[1])[0] + 10, found[2].decode("latin-1"), int(found[3])
        if descr != dtype.str or begins != found.end() or info.file_size != begins + count * dtype.itemsize:
            raise DamagedError(f"column {name!r} is {count} × {descr!r} in {info.file_size} bytes, not {dtype.str!r}")
        return _Declared(info, count, begins)

    def _unpacked(self, name: str, column: _Declared, dtype: Any) -> np.ndarray:
        try:
            data = self._zip.read(column.info)
        except _FAILURES as error:
            raise DamagedError(f"column {name!r} cannot be read ({said(error)})") from None
        if len(data) != column.info.file_size:
            raise DamagedError(f"column {name!r} ends too early")
        return np.frombuffer(data, dtype, column.length, column.begins)


def _check_whole(path: Path) -> None:
    """Refuse an archive that ends before its directory, or goes on behind it; anything else is left to ``zipfile``."""
    with path.open("rb") as file:
        if file.read(len(_BEGIN)) != _BEGIN:
            return
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _END_LENGTH, 0))
        if file.read(len(_END)) == _END:
            return
        file.seek(0)
        end = file.read().rfind(_END)
    if 0 <= end < size - _END_LENGTH:
        raise DamagedError(f"{counted(size - _END_LENGTH - end, 'byte')} follow the end of the archive")
    raise DamagedError(f"the file is cut short: it ends after {counted(size, 'byte')}, before its directory of columns")
