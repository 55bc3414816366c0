"""One thread at a time: what several threads must not do at once, in real and in virtual time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from pathways_nb.runtime.run_state import Condition
from pathways_nb.session.session import Session


class Exclusive:
    """Lets one thread at a time in; it may begin again inside.

    A lock would do, but for simulated time: who is inside may wait, and then time must pass for the others, who have to
    wait for it as one waits for a result.
    """

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._owner = 0
        """The thread that is inside."""
        self._waiting: list[Condition] = []
        """What wakes each thread that wants in: two controllers may want the same thing."""

    @contextlib.contextmanager
    def held(self, session: Session) -> Iterator[None]:
        """Hold the others off inside the block; ``session`` is where this thread waits before it."""
        mine = threading.get_ident()
        is_outermost = self._owner != mine
        try:  # an interrupt may come anywhere
            while not self._taken_by(mine):
                self._wait(session)
            yield
        finally:
            if is_outermost and self._owner == mine:
                self._owner = 0
                for bell in tuple(self._waiting):
                    bell.notify_all()

    def _wait(self, session: Session) -> None:
        driver = session.driver
        self._waiting.append(driver.ended)
        try:
            driver.ended.wait(lambda: not self._owner or driver.broken)
        finally:
            self._waiting.remove(driver.ended)

    def _taken_by(self, thread: int) -> bool:
        with self._changing:
            if not self._owner:
                self._owner = thread
        return self._owner == thread
