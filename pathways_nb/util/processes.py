"""Processes of this machine that can be ended from another one, without a signal to the wrong one."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import NamedTuple


class ProcessId(NamedTuple):
    """A process.

    Args:
        space: the machine since its start, and the container, in which numbers of processes are unique.
        number: of the process.
        began: when it began, as the system counts; numbers are given again.
    """

    space: str
    number: int
    began: str


def this_process() -> ProcessId:
    """Return this process; its ``space`` is empty where the system does not tell, and then nobody can end it."""
    return ProcessId(_space(), os.getpid(), _began(os.getpid()))


def end(process: ProcessId) -> bool:
    """End a process at once, also one that stands still; return whether it is of this machine and lived."""
    # By its beginning, too: the number may have been given to another process since.
    there = process.space and process.space == _space() and process.began == _began(process.number)
    if there:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.number, signal.SIGKILL)
    return bool(there)


def _space() -> str:
    try:
        # Numbers are unique between two starts of a machine, within one container.
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _began(process: int) -> str:
    try:
        # Field 22, counted behind the last bracket: the name of a process, in brackets, may have spaces and brackets.
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].decode().split()[19]
    except (OSError, IndexError):
        return ""
