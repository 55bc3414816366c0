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
from typing import Any

from pathways_nb.runtime.run_state import Condition
from pathways_nb.runtime.sim import held_up
from pathways_nb.session.session import Session


class _Free:
    """Whether a lock is free, or a driver has stopped; ``what`` says what its waiter waits for, in words."""

    def __init__(self, lock: Exclusive, driver: Any):
        self._lock, self._driver = lock, driver

    def __call__(self) -> bool:
        return not self._lock._owner or self._driver.broken

    @property
    def what(self) -> str:
        owner = self._lock.owner
        return f"{self._lock.what}, which thread {owner.name!r} holds" if owner is not None else self._lock.what


class Exclusive:
    """A lock that its owner may take again; other threads wait for it through their session's driver.

    Args:
        what: what it guards, in words, for a line about a thread that waits for it in vain.
    """

    def __init__(self, what: str) -> None:
        self.what = what
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

    @property
    def owner(self) -> threading.Thread | None:
        """The thread that holds the lock, if one does."""
        return next((thread for thread in threading.enumerate() if thread.ident == self._owner), None)

    def _wait(self, session: Session) -> None:
        """Wait until no thread holds the lock, or the driver has stopped."""
        driver, said = session.driver, False
        free = _Free(self, driver)
        self._waiting.append(driver.ended)
        try:
            if session.attach_options.simulated is not None:  # ``held_up`` names who holds up simulated time
                driver.ended.wait(free)
                return
            while not driver.ended.wait(free, held_up.NAMED_AFTER):
                said = said or self._say_who_holds_it(session)
        finally:
            self._waiting.remove(driver.ended)
            if said:
                session.say("")

    def _say_who_holds_it(self, session: Session) -> bool:
        """Show which thread holds the lock unless it is tracing or compiling, and return whether it was shown."""
        owner, mine = self.owner, threading.current_thread().name
        if owner is None or held_up.is_making(owner):
            return False
        session.say(
            f"thread {mine!r} waits for {self.what}, which thread {owner.name!r}{held_up.where_of(owner)} holds "
            f"without tracing{held_up.lock_of(owner)}. If that waits for something that {mine!r} does later, neither "
            f"goes on: a function that is traced must wait for no other thread. Let it wait before the call."
        )
        return True

    def _taken_by(self, thread: int) -> bool:
        """Take the lock for a thread if no thread holds it, and return whether this thread holds it now."""
        with self._changing:
            if not self._owner:
                self._owner = thread
        return self._owner == thread
