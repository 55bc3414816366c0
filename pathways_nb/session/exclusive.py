"""A reentrant lock on which threads wait in simulated time as well as in real time.

It guards the trace and plan of a program, which one thread makes for all (``calls.submit``), and a batch of loose calls
(``calls.batching``). A ``threading.RLock`` would deadlock a simulated controller: its holder may wait for simulated
time, which advances only while every other client thread is seen to wait, and a raw lock is not seen (see
``runtime.sim.thread_turns``). So threads wait on the driver's condition ``ended`` instead, as they do for results.

It takes a function and is no context manager: an interrupt may come where ``__exit__`` begins, before it has done
anything, and other threads would wait for ever. Here the first call of the ``finally`` block is one in C.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain
from operator import call
from typing import Any, TypeVar

from pathways_nb.runtime.sim import held_up
from pathways_nb.session.session import Session

T = TypeVar("T")
_numbers = itertools.count()


class _First:
    """Whether a ticket is the first in line, or a driver has stopped; ``what`` says what it waits for, in words."""

    def __init__(self, lock: Exclusive, ticket: tuple[int, int], driver: Any):
        self._lock, self._ticket, self._driver = lock, ticket, driver

    def __call__(self) -> bool:
        return self._lock.first() == self._ticket or self._driver.broken

    @property
    def what(self) -> str:
        owner = self._lock.owner
        return f"{self._lock.what}, which thread {owner.name!r} holds" if owner is not None else self._lock.what


class Exclusive:
    """A lock that its owner may take again; threads get it in the order in which they asked.

    Args:
        what: what it guards, in words, for a line about a thread that waits for it in vain.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._line: dict[tuple[int, int], None] = {}
        """A ticket (thread, number) for each thread that has the lock or waits for it; the first one has it."""
        self._bells: list[Callable[[], object]] = []
        """One function for each waiting thread, in C, which has it look again."""

    def run(self, session: Session, work: Callable[..., T], *args: Any) -> T:
        """Do ``work`` while no other thread does work under this lock.

        Args:
            session: the session of this thread, whose driver it waits with.
            work: the function to call.
            *args: its arguments.

        Returns:
            What ``work`` returns.
        """
        thread = threading.get_ident()
        # Its owner again: a call that fills the batch dispatches it, too.
        if self._line and (first := self.first()) is not None and first[0] == thread:
            return work(*args)
        ticket = thread, next(_numbers)
        # Made before it is needed, so that leaving is one call in C, which no interrupt divides.
        leave = chain(map(self._line.pop, (ticket,), (None,)), map(call, self._bells))
        try:
            self._line[ticket] = None
            # More than one ticket only if threads compete: the free lock costs no more than a dictionary's entry.
            while len(self._line) > 1 and self.first() != ticket:
                self._wait(session, ticket)
            return work(*args)
        finally:
            deque(leave, 0)

    def first(self) -> tuple[int, int] | None:
        """Return the first ticket in line, that of the owner; ``None`` if the lock is free."""
        return next(iter(list(self._line)), None)

    @property
    def owner(self) -> threading.Thread | None:
        """The thread that holds the lock, if one does."""
        first = self.first()
        return next((one for one in threading.enumerate() if first is not None and one.ident == first[0]), None)

    def _wait(self, session: Session, ticket: tuple[int, int]) -> None:
        """Wait until a ticket is the first in line, or the driver has stopped."""
        driver, said = session.driver, False
        bell = partial(driver.event_loop.inbox.put, driver.ended.notify_all)
        free = _First(self, ticket, driver)
        self._bells.append(bell)
        try:
            if session.attach_options.simulated is not None:  # ``held_up`` names who holds up simulated time
                driver.ended.wait(free)
                return
            while not driver.ended.wait(free, held_up.NAMED_AFTER):
                said = said or self._say_who_holds_it(session)
        finally:
            self._bells.remove(bell)
            if said:
                session.say("")

    def _say_who_holds_it(self, session: Session) -> bool:
        """Show which thread holds the lock unless it is tracing or compiling, and return whether it was shown."""
        owner, name = self.owner, threading.current_thread().name
        if owner is None or held_up.is_making(owner):
            return False
        session.say(
            f"thread {name!r} waits for {self.what}, which thread {owner.name!r}{held_up.where_of(owner)} holds "
            f"without tracing{held_up.lock_of(owner)}. If that waits for something that {name!r} does later, neither "
            f"goes on: a function that is traced must wait for no other thread. Let it wait before the call."
        )
        return True
