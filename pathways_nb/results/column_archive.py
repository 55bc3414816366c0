"""Read columns of numbers from a NumPy archive that may be damaged or hostile.

A compressed file of kilobytes can unpack to gigabytes. The sizes that the archive's directory and each column's header
declare are therefore compared with a bound and with each other before anything is unpacked. ``numpy.load`` checks
neither, and evaluates the header as a Python literal; here the header must match a regular expression, and nothing is
evaluated.

The meaning of the columns is checked in ``saved_record``.
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
"""The header of an array of one dimension in NumPy's format 1.0."""
_LONGEST = 256
"""Largest number of bytes of such a header; NumPy writes 128."""
_BEGIN, _END, _END_LENGTH = b"PK\x03\x04", b"PK\x05\x06", 22
"""The first bytes of a zip archive, and of its last record, which follows the directory and has no comment."""
_FAILURES = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError)
"""What ``zipfile`` raises for damaged bytes, for compression methods that it lacks, and for encryption."""


class _Declared(NamedTuple):
    """The declared size of a column: how many numbers it has, and at which byte of its file they begin."""

    info: zipfile.ZipInfo
    length: int
    begins: int


class Archive:
    """An archive that ``numpy.savez`` wrote; a context manager.

    Args:
        path: path of the file.

    Raises:
        FileNotFoundError: there is no such file.
        PermissionError: it may not be read.
        IsADirectoryError: it is a folder.
        DamagedError: the file is no archive.
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

    def __contains__(self, name: str) -> bool:
        return f"{name}.npy" in self._zip.NameToInfo

    def columns(self, wanted: Mapping[str, Any], most: int, unit: str) -> dict[str, np.ndarray]:
        """Return columns of equal length; read-only.

        Args:
            wanted: the type of each column, by its name.
            most: largest number of entries that a column may have.
            unit: what the entries are, for errors.

        Raises:
            DamagedError: a column is missing, has another type or length, or there are too many entries.
        """
        # The sizes of all columns are checked before the first is unpacked: kilobytes may unpack to gigabytes.
        declared = {name: self._declared(name, np.dtype(dtype)) for name, dtype in wanted.items()}
        counts = {name: column.length for name, column in declared.items()}
        if len(set(counts.values())) > 1:
            each = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise DamagedError(f"its columns are not equally long: {each}")
        if max(counts.values()) > most:
            raise DamagedError(f"it declares {max(counts.values())} {unit}; at most {most} are read")
        return {name: self._unpacked(name, column, wanted[name]) for name, column in declared.items()}

    def _declared(self, name: str, dtype: np.dtype) -> _Declared:
        """Return the declared size of a column, checked against the archive's directory, without unpacking its numbers.

        Raises:
            DamagedError: the column is missing or compressed by another method, or its header is wrong.
        """
        # By the directory of the archive; of several files of one name, ``zipfile`` has the last.
        info = self._zip.NameToInfo.get(f"{name}.npy")
        if info is None:
            raise DamagedError(f"there is no column {name!r}")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # other methods unpack too much
            raise DamagedError(
                f"column {name!r} is compressed by method {info.compress_type}, which run.save never uses"
            )
        try:
            with self._zip.open(info) as file:
                # Only the header is unpacked here. ``numpy.load`` would evaluate it as a Python literal.
                found = _HEADER.match(file.read(_LONGEST))
        except _FAILURES as error:
            raise DamagedError(f"column {name!r} cannot be read ({said(error)})") from None
        if found is None:
            raise DamagedError(f"column {name!r} does not begin as a column of numbers does")
        # Ten bytes (magic, version, length) stand before the header; the numbers begin where it says that it ends.
        begins, descr, count = struct.unpack("<H", found[1])[0] + 10, found[2].decode("latin-1"), int(found[3])
        if descr != dtype.str or begins != found.end() or info.file_size != begins + count * dtype.itemsize:
            raise DamagedError(f"column {name!r} is {count} × {descr!r} in {info.file_size} bytes, not {dtype.str!r}")
        return _Declared(info, count, begins)

    def _unpacked(self, name: str, column: _Declared, dtype: Any) -> np.ndarray:
        """Return the numbers of a column whose size has been checked.

        The array is read-only: it is a view of the bytes read.

        Raises:
            DamagedError: the bytes cannot be unpacked, or are fewer than declared.
        """
        try:
            data = self._zip.read(column.info)
        except _FAILURES as error:
            raise DamagedError(f"column {name!r} cannot be read ({said(error)})") from None
        # A stream shorter than the directory says is no error of ``zipfile`` if its checksum is right.
        if len(data) != column.info.file_size:
            raise DamagedError(f"column {name!r} ends too early")
        return np.frombuffer(data, dtype, column.length, column.begins)


def _check_whole(path: Path) -> None:
    """Refuse an archive that ends before its directory, or goes on behind it; anything else is left to ``zipfile``."""
    with path.open("rb") as file:
        if file.read(len(_BEGIN)) != _BEGIN:
            return
        # ``zipfile`` searches for the last record, and would take one in front of other bytes, or within numbers.
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _END_LENGTH, 0))
        if file.read(len(_END)) == _END:
            return
        file.seek(0)
        end = _last_record(file.read())
    if end is not None:
        raise DamagedError(f"{counted(size - _END_LENGTH - end, 'byte')} follow the end of the archive")
    raise DamagedError(f"the file is cut short: it ends after {counted(size, 'byte')}, before its directory of columns")


def _last_record(data: bytes) -> int | None:
    """Return where an archive's last record begins, or None; numbers may happen to hold the same four bytes."""
    end = data.rfind(_END, 0, -_END_LENGTH + len(_END))
    while end >= 0:
        length, begins = struct.unpack_from("<II", data, end + 12)
        if begins + length == end:  # it tells where the directory is, which ends where the record begins
            return end
        end = data.rfind(_END, 0, end + len(_END) - 1)
    return None
