"""A folder takes its name at once and for good: a crash at any instant leaves the older folder, or the newer one.

What is being written lies in a hidden folder next to it. It is synced to the disk and then exchanged with the
older folder, which is removed after that. Systems that cannot exchange two names (not Linux or macOS, some network file
systems) rename twice; what a crash leaves between the two is found again under its hidden name.

A process locks the hidden folders that it works with, and the system unlocks them when it ends. So a hidden folder
without a lock is what an interrupted process left.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

_AT_CWD, _EXCHANGE, _SWAP = -100, 2, 2
"""Constants of ``renameat2`` (``AT_FDCWD``, ``RENAME_EXCHANGE``) and of macOS's ``renamex_np`` (``RENAME_SWAP``)."""
_LOOKS, _LOOK = 100, 0.01
"""How often a path is looked for that another process may be renaming, and the seconds between two looks."""
_OLDER = ".old"
"""Ending of the hidden name of the older folder, between two renames."""


@contextlib.contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Make a hidden folder for what will be ``path``; what has a hidden name after the block is removed.

    Yields:
        The folder, which ``take_name`` renames.
    """
    hidden = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}"
    hidden.mkdir()
    with _locked(hidden):
        try:
            yield hidden
        finally:
            older = _older(hidden)
            if path.exists() or not older.exists():  # else the older one is all there is, see ``find``
                remove(hidden)
                remove(older)


def take_name(hidden: Path, path: Path) -> None:
    """Give a hidden folder, all of whose files are synced, its name.

    An older folder of that name has the hidden one afterwards, or that with ``.old``.
    """
    sync_folder(path.parent)  # the hidden name itself must survive a crash that comes between two renames
    if not path.exists():
        os.rename(hidden, path)
    elif not exchange(hidden, path):
        _rename_twice(hidden, path)
    sync_folder(path.parent)


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step, and return whether the system can do that."""
    library = ctypes.CDLL(None, use_errno=True)
    if hasattr(library, "renameat2"):
        failed = library.renameat2(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE)
    elif hasattr(library, "renamex_np"):
        failed = library.renamex_np(os.fsencode(one), os.fsencode(other), _SWAP)
    else:
        return False
    if not failed:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # this file system cannot
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def _rename_twice(hidden: Path, path: Path) -> None:
    older = _older(hidden)
    with _locked(path):
        try:
            os.rename(path, older)
            sync_folder(path.parent)
            os.rename(hidden, path)
        # An interrupt between the two renames: the older folder gets its name back.
        except BaseException:
            if older.exists() and not path.exists():
                os.rename(older, path)
            raise


def left(path: Path) -> list[Path]:
    """Return the hidden folders that interrupted processes left for a path."""
    return [folder for folder in _hidden(path) if not _is_locked(folder)]


def _hidden(path: Path) -> list[Path]:
    """Return the hidden folders of a path, also those with which a process works."""
    mark = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}({re.escape(_OLDER)})?")
    try:
        names = sorted(filter(mark.fullmatch, os.listdir(path.parent)))
    except (OSError, ValueError):  # there is no such folder, it may not be listed, or it cannot have that name
        return []
    return [folder for folder in (path.parent / name for name in names) if folder.is_dir()]


def find(path: Path) -> Path:
    """Return where a folder lies: under its name, or where a crash between two renames left the newer one."""
    older: list[Path] = []
    for _ in range(_LOOKS):
        if os.path.lexists(path):
            return path
        older = [folder for folder in _hidden(path) if folder.name.endswith(_OLDER)]
        if not any(map(_is_locked, older)):
            break
        time.sleep(_LOOK)  # a save is between its two renames, or the file system has no locks
    # An older one without its name tells that the newer one was complete and synced.
    return next((one for folder in older for one in (folder.with_suffix(""), folder) if one.exists()), path)


def recover(path: Path) -> None:
    """Give the folder that ``find`` finds its name again, and remove what else was left for it."""
    found = find(path)
    if found != path:
        os.rename(found, path)
        sync_folder(path.parent)
    for folder in left(path):
        remove(folder)


def remove(folder: Path) -> None:
    """Remove a hidden folder, if it is there; what took its place is on the disk first."""
    if folder.exists():
        sync_folder(folder.parent)
        shutil.rmtree(folder, ignore_errors=True)


def sync(folder: Path) -> None:
    """Sync every file below a folder to the disk, then each folder: the innermost first, itself last."""
    # A folder's names after its files, so that a name on the disk stands for a file that is there.
    for where, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(where) / name)
        sync_folder(Path(where))


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to the disk."""
    with contextlib.suppress(PermissionError):  # a folder in which names may be made, but not listed
        _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync leaves it in the drive's cache
    try:
        if full is None:
            os.fsync(descriptor)
        else:
            fcntl.fcntl(descriptor, full)
    finally:
        os.close(descriptor)


def _older(hidden: Path) -> Path:
    return hidden.with_name(hidden.name + _OLDER)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from taking a folder for one that was left.

    Yields:
        Nothing.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # the file system has no locks; who looks holds it for microseconds
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_locked(folder: Path) -> bool:
    """Return whether a process works with a folder; also where the file system cannot tell, so that it is kept."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who look see the same
        return False
    except OSError:
        return True
    finally:
        os.close(descriptor)
