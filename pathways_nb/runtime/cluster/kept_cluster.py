"""The Ray cluster on this machine that several kernels of one user share: found, or started (see ``keep_cluster``)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pathways_nb.errors import PlaceError
from pathways_nb.util import json_text
from pathways_nb.util.json_text import DamagedError, Field

_PATIENCE = 90.0
"""Seconds for a cluster to start."""


def find_or_start(say: Callable[[str], object]) -> tuple[str, socket.socket]:
    """Return the address of this user's shared cluster, and the connection that keeps it alive.

    Args:
        say: shows a line of progress.

    Raises:
        PlaceError: it does not start.
    """
    folder = folder_of_user()
    with _locked(folder):
        found = _find(folder)
        if found is None:
            say("starting a Ray cluster that outlives this kernel …")
            _start(folder)
            found = _find(folder)
        if found is None:
            raise PlaceError(f"the Ray cluster ended as soon as it had started; see {folder / 'log'}.")
    return found


def use_token() -> None:
    """Have Ray, which is imported next, use this user's own token for clusters on this machine, unless it has another.

    Ray reads it once, when it is imported; a cluster that was started without it refuses other processes.
    """
    usual = Path.home() / ".ray" / "auth_token"
    if any(name.startswith("RAY_AUTH_") for name in os.environ) or "ray" in sys.modules:
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    if not usual.exists():
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(_token(folder_of_user()))


def _token(folder: Path) -> Path:
    path = folder / "token"
    with _locked(folder):
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
    return path


def folder_of_user() -> Path:
    """Return a folder that only this user can read: who can connect to Ray can run code."""
    folder = Path(tempfile.gettempdir()) / f"pathways_nb-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PlaceError(f"{folder} belongs to another user; set TMPDIR to a folder of yours.")
    return folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other kernels from starting a cluster in this block.

    Yields:
        Nothing.
    """
    with (folder / "lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                time.sleep(0.1)
        yield


def _find(folder: Path) -> tuple[str, socket.socket] | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        known = Field(json_text.read(folder / "cluster.json"))
        lifeline, address = known["lifeline"].text(), known["address"].text()
        connection.settimeout(10.0)
        connection.connect(lifeline)
        if connection.recv(1) == b"1":
            return address, connection
    except (OSError, DamagedError):
        pass
    connection.close()
    return None


def _start(folder: Path) -> None:
    (folder / "cluster.json").unlink(missing_ok=True)
    program = Path(__file__).with_name("keep_cluster.py")
    with (folder / "log").open("wb") as log:
        started = subprocess.Popen(
            [sys.executable, str(program), str(folder)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    until = time.monotonic() + _PATIENCE
    while not (folder / "cluster.json").exists():
        if started.poll() is not None or time.monotonic() > until:
            started.kill()
            last = (folder / "log").read_text(errors="replace").strip().splitlines()[-1:]
            raise PlaceError(f"Ray did not start: {last[0] if last else 'it said nothing'} (see {folder / 'log'}).")
        time.sleep(0.1)
