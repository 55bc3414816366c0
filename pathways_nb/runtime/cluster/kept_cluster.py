"""The Ray cluster on this machine that several kernels of one user share: found, or started (see ``keep_cluster``)."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pathways_nb.errors import PlaceError
from pathways_nb.runtime.cluster.private_folder import folder_of_user, locked
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
    with locked(folder, "lock"):
        found = _find(folder)
        if found is None:
            say("starting a Ray cluster that outlives this kernel …")
            _start(folder)
            found = _find(folder)
        if found is None:
            raise PlaceError(f"the Ray cluster ended as soon as it had started; see {folder / 'log'}.")
    return found


def keeper() -> int | None:
    """Return the process that keeps this user's shared cluster; ``None`` if there is none."""
    try:
        return Field(json_text.read(folder_of_user() / "cluster.json"))["process"].whole()
    except (OSError, DamagedError):
        return None


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
