"""The folder of this user on this machine in which tokens, sockets and Ray's sessions lie, and which is checked.

Who can write to a folder with a socket can put another one in its place, and who can read a token can run code. Ray
makes the folders that it uses open to everybody, so they lie below one that is not.

It imports nothing of the package, so that ``keep_cluster`` can import it by path.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_LONGEST = 103 if sys.platform == "darwin" else 107
"""Bytes of the longest path of a Unix socket."""
_SOCKET = "/r-123456/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""The longest path of a socket below the folder."""


class NotPrivateError(OSError):
    """A folder or a file is not this user's alone."""


def folder_of_user() -> Path:
    """Return this user's folder, which is made if it is not there, and checked if it is.

    It lies in the folder for temporary files, or in ``/tmp`` where paths of sockets would be too long.

    Raises:
        NotPrivateError: another user may read it or write to it.
    """
    usual = Path(tempfile.gettempdir()).resolve()
    places = [Path(place) / f"pathways_nb-{os.getuid()}" for place in (usual, "/tmp")]
    folder = next((one for one in places if len(os.fsencode(one)) + len(_SOCKET) <= _LONGEST), places[0])
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    check(folder)
    return folder


def check(folder: Path) -> None:
    """Check that only this user can read a folder, write to it, or put another in its place.

    Raises:
        NotPrivateError: saying what is wrong with it, and how to get another.
    """
    found = folder.lstat()
    wrong = _wrong(found, stat.S_ISDIR, "folder", 0o700)
    for above in folder.resolve().parents:
        mode = above.stat().st_mode
        if not wrong and mode & 0o022 and not mode & stat.S_ISVTX:
            wrong = f"others can replace it, because {above} has mode {stat.S_IMODE(mode):04o}"
    if wrong:
        raise NotPrivateError(
            f"{folder}: {wrong}. Keys and sockets of a cluster must be out of others' reach. Remove it if it is yours, "
            f"or set TMPDIR to a short path of a folder of yours."
        )


def token_of_user(folder: Path) -> Path:
    """Return the file with this user's key to the clusters that are made here.

    Args:
        folder: as ``folder_of_user`` returns it.

    Raises:
        NotPrivateError: another user may read the file.
    """
    path = folder / "token"
    with locked(folder, "token-lock"):
        if not os.path.lexists(path):
            written = folder / "new-token"
            written.unlink(missing_ok=True)
            with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32))
            written.replace(path)  # whole or not there, however this process ends
    check_file(path)
    return path


def check_file(path: Path) -> None:
    """Check that only this user can read a file.

    Raises:
        NotPrivateError: saying what is wrong with it.
    """
    try:
        found = path.lstat()
    except OSError as error:
        raise NotPrivateError(
            f"{path} cannot be read: {error.strerror}. Name another file in RAY_AUTH_TOKEN_PATH, or unset it."
        ) from None
    if wrong := _wrong(found, stat.S_ISREG, "file", 0o600):
        raise NotPrivateError(f"{path}: {wrong}. Who can read it can run code as you. Remove it, or chmod 600 it.")


def _wrong(found: os.stat_result, is_kind: Callable[[int], bool], kind: str, mode: int) -> str:
    """Return what is wrong with a folder or file; empty if nothing is."""
    if stat.S_ISLNK(found.st_mode):
        return f"it is a link, not a {kind}"
    if not is_kind(found.st_mode):
        return f"it is no {kind}"
    if found.st_uid != os.getuid():
        return f"it belongs to user {found.st_uid}, and this process is user {os.getuid()}'s"
    has = stat.S_IMODE(found.st_mode)
    return f"its mode is {has:04o}, not {mode:04o}" if has & 0o077 else ""


@contextlib.contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Keep this user's other processes out of blocks of this name.

    Yields:
        Nothing.
    """
    with (folder / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass
class SessionFolder:
    """A folder for one cluster, for as long as the process that made it lives.

    Args:
        path: of the folder.
        held: a locked file in it: what is not locked is left from a process that has ended.
    """

    path: Path
    held: IO[str]

    def check(self) -> None:
        """Check that it lies where only this user can reach it.

        Raises:
            NotPrivateError: it does not.
        """
        check(self.path.parent)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.held.close()


def new_session_folder() -> SessionFolder:
    """Return a new folder for a cluster, below the one of this user; what ended clusters have left is removed."""
    folder = folder_of_user()
    with locked(folder, "sessions-lock"):
        for left in folder.glob("r-*"):
            with contextlib.suppress(OSError), (left / "held").open("a") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
        path = folder / f"r-{secrets.token_hex(3)}"
        path.mkdir(mode=0o700)
        held = (path / "held").open("w")
        fcntl.flock(held, fcntl.LOCK_EX)
    return SessionFolder(path, held)
