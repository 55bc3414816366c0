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

from pathways_nb.session.session import Session

T = TypeVar("T")
_numbers = itertools.count()


class Exclusive:
    """A lock that its owner may take again; threads get it in the order in which they asked."""

    def __init__(self) -> None:
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
        mine = threading.get_ident()
        if self._line and (owner := self._owner()) is not None and owner[0] == mine:
            return work(*args)
        ticket = mine, next(_numbers)
        leave = chain(map(self._line.pop, (ticket,), (None,)), map(call, self._bells))
        try:
            self._line[ticket] = None
            while len(self._line) > 1 and self._owner() != ticket:
                self._wait(session, ticket)
            return work(*args)
        finally:
            deque(leave, 0)

    def _owner(self) -> tuple[int, int] | None:
        """Return the first ticket in line."""
        return next(iter(list(self._line)), None)

    def _wait(self, session: Session, ticket: tuple[int, int]) -> None:
        """Wait until a ticket is the first in line, or the driver has stopped."""
        driver = session.driver
        bell = partial(driver.event_loop.inbox.put, driver.ended.notify_all)
        self._bells.append(bell)
        try:
            driver.ended.wait(lambda: self._owner() == ticket or driver.broken)
        finally:
            self._bells.remove(bell)
