"""A reentrant lock on which threads wait in simulated time as well as in real time.

It guards the trace and plan of a program, which one thread makes for all (``calls.submit``), and a batch of loose calls
(``calls.batching``). A ``threading.RLock`` would deadlock a simulated controller: its holder may wait for simulated
time, which advances only while every other client thread is seen to wait, and a raw lock is not seen (see
``runtime.sim.thread_turns``). So threads wait on the driver's condition ``ended`` instead, as they do for results.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from pathways_nb.session.session import Session
from pathways_nb.util.waiting import Condition


class Exclusive:
    """A lock that its owner may take again; other threads wait for it through their session's driver."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._owner = 0
        """Identifier of the thread that holds the lock; 0 if none does."""
        self._waiting: list[Condition] = []
        """One condition for each waiting thread; they differ if threads of two controllers wait for one lock."""

    @contextlib.contextmanager
    def held(self, session: Session) -> Iterator[None]:
        """Hold the lock inside the block.

        Args:
            session: the session of this thread, whose driver it waits with.

        Yields:
            Nothing.
        """
        mine = threading.get_ident()
        is_outermost = self._owner != mine
        try:  # an interrupt may come anywhere
            while not self._taken_by(mine):
                self._wait(session)
            yield
        finally:
            if is_outermost and self._owner == mine:
                self._owner = 0
                for condition in tuple(self._waiting):
                    condition.notify_all()

    def _wait(self, session: Session) -> None:
        """Wait until no thread holds the lock, or the driver has stopped."""
        driver = session.driver
        self._waiting.append(driver.ended)
        try:
            driver.ended.wait(lambda: not self._owner or driver.broken)
        finally:
            self._waiting.remove(driver.ended)

    def _taken_by(self, thread: int) -> bool:
        """Take the lock for a thread if no thread holds it, and return whether this thread holds it now."""
        with self._changing:
            if not self._owner:
                self._owner = thread
        return self._owner == thread
