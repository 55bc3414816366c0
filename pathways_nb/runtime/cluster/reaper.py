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
_STEP, _LOOKS = 0.5, 10
"""Seconds between two looks whether the kernel lives, and how many of them until processes are looked for."""
_PROCESSES = Path("/proc")


class Reaper:
    """The process that ends a cluster.

    Args:
        mark: of the cluster's processes; none is started where they could not be found.
    """

    def __init__(self, mark: str):
        self._folders: list[str] = []
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
        self._folders.append(folder)
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(folder.encode() + b"\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """End the cluster's processes now; returns when they are gone. It may be called again."""
        if self._process is not None:
            with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
                self._process.communicate(timeout=2 * _PATIENCE)
        for folder in self._folders:  # Ray, which disconnects later, makes it anew
            shutil.rmtree(folder, ignore_errors=True)


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


def found(mark: str) -> dict[int, str]:
    """Return the processes with a mark and what they have started, with when each began."""
    marked, wanted = set[int](), f"{_MARK}={mark}".encode()
    states = {process: _state(process) for process in _numbers()}
    for process in states:
        with contextlib.suppress(OSError):  # another user's, or it has ended
            if wanted in (_PROCESSES / str(process) / "environ").read_bytes().split(b"\0"):
                marked.add(process)
    size = -1
    while size != len(marked):
        size = len(marked)
        marked |= {process for process, (_, parent, _) in states.items() if parent in marked}
    return {process: states[process][2] for process in marked if process != os.getpid()}


def _numbers() -> list[int]:
    return [int(entry.name) for entry in _PROCESSES.iterdir() if entry.name.isdecimal()]


def _state(process: int) -> tuple[str, int, str]:
    """Return the state of a process, its parent, and when it began; the state ``X`` if it has ended."""
    try:
        fields = (_PROCESSES / str(process) / "stat").read_bytes().rpartition(b")")[2].decode().split()
    except OSError:
        return "X", 0, ""
    return fields[0], int(fields[1]), fields[19]


def kill_all(mark: str, known: dict[int, str]) -> None:
    """End the processes with a mark and those that are known, those too that start meanwhile."""
    deadline, left = time.monotonic() + _PATIENCE, True
    while left and time.monotonic() < deadline:
        left = False
        for process, began in (known | found(mark)).items():
            state, _, now = _state(process)
            if state not in "XZ" and now == began:
                left = True
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
        time.sleep(0.02)


def main(mark: str, parent: int) -> None:
    """Wait for the end of the input, or of the parent if a process it forked holds the input open."""
    said, lives, known, looks = b"", True, dict[int, str](), 0
    while lives:
        lives = os.getppid() == parent
        if looks % _LOOKS == 0:  # now and then: the parent of a process may be gone when all are to be ended
            known.update(found(mark))
        looks += 1
        while select.select([0], [], [], _STEP if lives else 0.0)[0]:
            more = os.read(0, 4096)
            if not more:
                lives = False
                break
            said, looks = said + more, 0
    kill_all(mark, known)
    for folder in said.decode().splitlines():
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
