"""``pw.doctor``: what is known of a controller at one moment, written to a file that can be sent to whoever helps.

It takes no lock of the controller, only the record's own for a moment: it is needed most when something else waits
without end.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pathways_nb.controller import log_text
from pathways_nb.controller.log import Log
from pathways_nb.errors import UsageError
from pathways_nb.session import default_controller
from pathways_nb.session.session import Session
from pathways_nb.util.host_info import machine
from pathways_nb.util.json_text import DamagedError

_EVENTS = 100
"""Events of the record that are written, the last ones."""
_FILES = 20
"""Files that are kept."""
_LOG = "the controller's log, for pathways_nb.session.diagnosis.log_of"


def doctor() -> Path:
    """Write down what the current controller is doing: for a report when a program does not go on.

    The file lists the islands with the age of their hosts' last answers, the programs under way and what they wait
    for, the last events, the stack of every thread of this process, and the controller's log, which can be played
    again. Such a file is written by itself, and named, when hosts are lost or have reported nothing for half a minute
    while programs are under way. On a controller that several kernels share (``name=``), each writes about its own
    programs, without the log.

    Returns:
        The path of the file, which only this user can read.

    Raises:
        NotAttachedError: nothing is attached.
    """
    return written(default_controller.get())


def written(session: Session, why: str = "asked for") -> Path:
    """Write the file about a session.

    Args:
        session: the session.
        why: it is written.

    Returns:
        Its path.
    """
    descriptor, path = tempfile.mkstemp(prefix="pathways-doctor-", suffix=".txt")
    with os.fdopen(descriptor, "w", errors="backslashreplace") as file:
        file.write(f"{why}\n{datetime.now().isoformat(timespec='seconds')}, {machine()}\n")
        for title, lines in {
            "devices": _devices, "under way": _under_way, f"last {_EVENTS} events": _events, "threads": _threads,
            _LOG: _log,
        }.items():  # fmt: skip
            file.write(f"\n---- {title}\n")
            file.writelines(f"{line}\n" for line in _safe(lines, session))
    _forget_old(Path(path).parent)
    return Path(path)


def log_of(path: str | Path) -> Log:
    """Return the controller's log in a file of ``pw.doctor``: ``log_of(path).replay()`` plays it again without devices.

    Args:
        path: path of the file.

    Raises:
        UsageError: there is no whole log in it.
    """
    line = Path(path).read_text(errors="backslashreplace").partition(f"---- {_LOG}\n")[2].strip()
    try:
        return log_text.from_bytes(line.encode())
    except DamagedError as error:
        raise UsageError(f"log_of({str(path)!r}): there is no log that can be read in it: {error}.") from None


def _forget_old(folder: Path) -> None:
    """Remove all but the last of this user's files."""
    with contextlib.suppress(OSError):  # another kernel removes them, too
        own = [one for one in folder.glob("pathways-doctor-*.txt") if one.stat().st_uid == os.getuid()]
        for old in sorted(own, key=lambda one: one.stat().st_mtime)[:-_FILES]:
            old.unlink()


def _safe(lines: Callable[[Session], Iterator[str]], session: Session) -> Iterator[str]:
    """Yield the lines of a part; other threads go on and may change what it reads."""
    try:
        yield from lines(session)
    except Exception as error:
        yield f"({type(error).__name__}: {error})"


def _devices(session: Session) -> Iterator[str]:
    yield repr(session)
    driver = session.driver_or_none
    for island in driver.attachment.islands if driver is not None else ():
        yield f"island {island.index}: {len(island.devices)} devices{island.about}"
    if driver is not None and driver.priced:
        yield driver.priced
    for where in session.resources.lost:
        yield f"lost: {where}"


def _under_way(session: Session) -> Iterator[str]:
    driver: Any = session.driver_or_none
    if driver is None:
        return
    for serial, call in list(driver.runs.items()):
        yield f"run {serial}: {call.compiled_plan.name}{f' of {call.client}' if call.client else ''}"
        for step, error in list(call.errors.items()):
            yield f"  step {step} failed: {error}"
    yield from driver.waits()


def _events(session: Session) -> Iterator[str]:
    events = session.active_record().events()
    columns = {name: events[name][-_EVENTS:] for name in ("start", "end", "kind", "name", "program", "run", "status")}
    for start, end, kind, name, program, call, status in zip(*columns.values(), strict=True):
        yield f"{start:.6f} to {end:.6f}: {kind} {name} of {program}, run {call}, {status}"


def _log(session: Session) -> Iterator[str]:
    driver: Any = session.driver_or_none
    if driver is not None:
        book = driver.event_loop.logbook
        # A controller that several kernels share keeps the log of them all.
        yield (driver.event_loop.machine.log if book is None else log_text.as_bytes(book.log())).decode()


def _threads(session: Session) -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"{names.get(ident, 'unknown')} ({ident})"
        yield from (line.rstrip() for line in traceback.format_stack(frame))
