"""A thread that interrupts the main thread at times that have nothing to do with what that does."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType


class Heard:
    """Keeps where the last signal met the main thread, before the handler in place: who swallows it tells nobody."""

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], object] = signal.getsignal(signal.SIGINT)  # type: ignore[assignment]
        self._lines: list[tuple[str, int]] = []
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        at = frame
        self._lines.clear()
        while at is not None:
            self._lines.append((at.f_code.co_filename, at.f_lineno))
            at = at.f_back
        self._handler(number, frame)

    def text(self) -> str:
        """Return the lines that ran when the last signal came, innermost first."""
        return "\n".join(f"  {file}:{line}" for file, line in self._lines)


class Interrupter(threading.Thread):
    """Interrupts the main thread after so many seconds, each time it is asked to."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.after: SimpleQueue[float] = SimpleQueue()
        self.sent = 0
        """How many signals it has sent."""

    def run(self) -> None:
        """Send one signal for each number in the queue."""
        while True:
            time.sleep(self.after.get())
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]
            self.sent += 1


def interrupted(work: Callable[[], object], after: float, by: Interrupter) -> bool:
    """Do ``work``, interrupted after so many seconds or just after its end; return whether an interrupt was raised."""
    before, came = by.sent, False
    by.after.put(after)
    try:
        work()
    except KeyboardInterrupt:
        came = True
    try:
        while by.sent == before:  # it comes later: it is still to be heard
            time.sleep(1e-4)
        for _ in range(300 if not came else 0):  # it may have been put off
            time.sleep(1e-3)
    except KeyboardInterrupt:
        came = True
    return came


def seconds(work: Callable[[], object]) -> float:
    """Return how long ``work`` takes: within that time it is interrupted."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
