"""Waiting for a condition in place of a time, and launches that end only when the test says so.

How fast or how busy the machine is must not change what a test finds. ``LIMIT`` only serves to report what is stuck.
"""

from __future__ import annotations

import gc
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pathways_nb as pw
from pathways_nb.controller import scheduler
from pathways_nb.util.waiting import Condition

LIMIT = 300.0
"""Seconds after which what is waited for is taken to be stuck: far above what anything takes."""


def until(ready: Callable[[], bool]) -> None:
    """Wait until ``ready()``, which is asked again and again.

    Raises:
        TimeoutError: it never is.
    """
    deadline = time.monotonic() + LIMIT
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"still not so after {LIMIT:.0f} s")
        time.sleep(1e-3)


def until_freed(ready: Callable[[], bool]) -> None:
    """The same of what is freed: a thread may hold for a moment longer what it has just finished with."""

    def collected() -> bool:
        gc.collect()
        return ready()

    if not ready():
        until(collected)


def stand_still() -> None:
    """Plain Python that goes on until it is interrupted, which may be anywhere: an Event is not made for that."""
    while True:
        time.sleep(0.01)


def dispatchers(controller: pw.Controller) -> Sequence[Any]:
    """The dispatcher of each island."""
    return controller.driver._dispatchers  # type: ignore[attr-defined]


def launched(controller: pw.Controller) -> int:
    """How many launches are under way on island 0."""
    return len(dispatchers(controller)[0].computing.flight)


@contextmanager
def held_back(dispatcher: Any) -> Iterator[None]:
    """Let no launch go out on this dispatcher's island, nor anything behind one, until the block ends.

    A core of this process enqueues meanwhile whatever is called, however long it took when it was called before.
    """
    window, dispatcher.computing.window = dispatcher.computing.window, 0
    far, scheduler.FAR = scheduler.FAR, math.inf
    try:
        yield
    finally:
        dispatcher.computing.window, scheduler.FAR = window, far


def waiters(bell: Condition) -> int:
    """How many threads a bell would wake."""
    return len(bell._waiting)


def is_waited_for(controller: pw.Controller) -> bool:
    """Whether some thread waits for a result, for the end of a run, or for room to submit."""
    return waiters(controller.driver.ended) > 0


@contextmanager
def interrupt_when(ready: Callable[[], bool]) -> Iterator[None]:
    """Interrupt the main thread as soon as ``ready()``; at the end of the block it has been."""

    def interrupt() -> None:
        until(ready)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    yield
    thread.join(LIMIT)


class Unseen:
    """Ends of launches that nobody sees before ``see()``: what was sent stays under way, however fast devices are."""

    def __init__(self, controller: pw.Controller):
        self.controller, self._held = controller, [one.computing._looking for one in dispatchers(controller)]
        for lock in self._held:
            lock.acquire()

    def see_when_waited_for(self) -> None:
        """See them as soon as some thread waits for something and the core knows of all that has been called."""

        def see() -> None:
            until(lambda: is_waited_for(self.controller))
            self.controller.driver.event_loop.in_turn(lambda: None)
            self.see()

        threading.Thread(target=see, daemon=True).start()

    def see(self) -> None:
        """From now on ends are seen as they happen, those of before first."""
        held, self._held = self._held, []
        for lock in held:
            lock.release()

    def __enter__(self) -> Unseen:
        return self

    def __exit__(self, *_: object) -> None:
        if self._held:  # only now does the core know of all that was called meanwhile
            self.controller.driver.event_loop.in_turn(lambda: None)
        self.see()
