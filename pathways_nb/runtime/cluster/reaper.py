"""Ends all processes of a Ray cluster on this machine when the process that made it has ended, however that was.

Ray's agents, workers and hosts outlive a killed kernel by minutes, or for ever if one stands still. So a small process,
``python reaper.py``, waits beside the kernel until its input is closed, which the system does with the kernel. Then it
ends every process that was started with the same mark in its environment, and removes the cluster's folder. It imports
nothing of the package. Processes are found in ``/proc``; on other systems Ray's own ends are all there is.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_MARK = "PATHWAYS_NB_CLUSTER"
"""The variable in the environment of all processes of a cluster."""
_PATIENCE = 10.0
"""Seconds for processes to be gone."""
_PROCESSES = Path("/proc")


class Reaper:
    """The process that ends a cluster.

    Args:
        mark: of the cluster's processes; none is started where they could not be found.
    """

    def __init__(self, mark: str):
        self._process: subprocess.Popen[bytes] | None = None
        if _PROCESSES.is_dir():
            environment = {name: value for name, value in os.environ.items() if name != _MARK}
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", __file__, mark, str(os.getpid())],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True, env=environment, cwd="/",
            )  # fmt: skip

    def removes(self, folder: str) -> None:
        """Have a folder removed at the end."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(folder.encode() + b"\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """End the cluster's processes now; returns when they are gone."""
        if self._process is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._process.communicate(timeout=2 * _PATIENCE)


@contextlib.contextmanager
def marked() -> Iterator[Reaper]:
    """Have all processes that start in this block end with this process, or with ``Reaper.end``.

    Yields:
        What ends them.
    """
    mark, before = secrets.token_hex(8), os.environ.get(_MARK)
    os.environ[_MARK] = mark
    try:
        yield Reaper(mark)
    finally:
        if before is None:
            del os.environ[_MARK]
        else:
            os.environ[_MARK] = before


def living(mark: str) -> list[int]:
    """Return the processes with a mark; of other users' processes nothing can be known."""
    wanted, found = f"{_MARK}={mark}".encode(), []
    for entry in _PROCESSES.iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def kill_all(mark: str) -> None:
    """End the processes with a mark, those too that start meanwhile."""
    deadline = time.monotonic() + _PATIENCE
    while (left := living(mark)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)


def main(mark: str, parent: int) -> None:
    """Wait for the end of the input, or of the parent if a process it forked holds the input open."""
    said, lives = b"", True
    while lives:
        lives = os.getppid() == parent
        while select.select([0], [], [], 0.5 if lives else 0.0)[0]:
            more = os.read(0, 4096)
            if not more:
                lives = False
                break
            said += more
    kill_all(mark)
    for folder in said.decode().splitlines():
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
