"""Waiting that an interrupt may end at any bytecode, and work that is handed to other threads in one step.

Ctrl-C raises ``KeyboardInterrupt`` in the main thread between two bytecodes. ``threading.Condition``, ``Event``,
``queue.Queue`` and ``ThreadPoolExecutor.submit`` are Python code: an interrupt between taking their lock and the block
that gives it back leaves the lock taken, and the next user waits for ever. Here every step that others depend on is one
call of a function written in C, which happens as a whole or not at all: putting into a ``SimpleQueue``, adding to a
``dict``, releasing a lock that belongs to one waiter alone.
"""

from __future__ import annotations

import atexit
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any, Generic, TypeVar

from pathways_nb.util import forks

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_HEARD = 0.5
"""The longest time, in seconds, until an interrupt is heard."""
waits: set[CodeType] = set()
"""Functions that are written to be interrupted at any bytecode (see ``util.interrupts``)."""
_AT_EXIT = 10.0
"""Seconds that the end of the process waits for work under way, at most."""


def interruptible(function: F) -> F:
    """Have an interrupt end this wait at once, also where a block is entered or left around it."""
    waits.add(function.__code__)
    return function


class Condition:
    """A condition variable whose waiters name what they wait for; only those whose wait is over are woken.

    ``threading.Condition`` would wake all of them to ask themselves. Then every client's thread would take Python's
    lock at every end of any client's program. It costs nothing while nobody waits.
    """

    def __init__(self) -> None:
        self._waiting: dict[threading.Lock, Callable[[], bool]] = {}
        """By the lock on which a thread sleeps: the predicate it waits for. Who removes it, wakes the thread."""
        self._muffled: set[int] = set()
        """Threads whose notifications are postponed."""

    @contextmanager
    def once(self) -> Iterator[None]:
        """Postpone this thread's notifications to the end of the block, so that a waiter for several ends wakes once.

        Yields:
            Nothing.
        """
        self._muffled.add(threading.get_ident())
        try:
            yield
        finally:
            self._muffled.discard(threading.get_ident())
            self.notify_all()

    def notify_all(self) -> None:
        """Wake the threads whose predicate holds."""
        if self._waiting and threading.get_ident() not in self._muffled:
            # A copy: waiters come and go meanwhile, without a lock.
            for asleep, ready in self._waiting.copy().items():
                # Of several notifiers one removes the entry, so the lock is released once.
                if ready() and self._waiting.pop(asleep, None) is not None:
                    asleep.release()

    @interruptible
    def wait(self, ready: Callable[[], bool], timeout: float = -1) -> bool:
        """Wait until ``ready()``; interrupts are heard.

        Args:
            ready: the predicate; other threads call it, too, so it must be quick and take no lock.
            timeout: seconds to wait at most; negative for no limit.

        Returns:
            Whether ``ready()`` holds.
        """
        if ready():
            return True
        asleep = threading.Lock()
        asleep.acquire()
        try:
            self._waiting[asleep] = ready
            # Asked again: whoever made it true before it was added has not seen it.
            return ready() or _acquire(asleep, timeout) or ready()
        finally:
            self._waiting.pop(asleep, None)


def _acquire(asleep: threading.Lock, timeout: float) -> bool:
    """Acquire a lock.

    The main thread waits in short steps: Python overlooks a signal that arrives just before a wait until it ends.

    Args:
        asleep: the lock.
        timeout: seconds to wait at most; negative for no limit.

    Returns:
        Whether it was acquired.
    """
    if threading.current_thread() is not threading.main_thread():
        return asleep.acquire(timeout=timeout if timeout >= 0 else -1)
    left = timeout
    while not asleep.acquire(timeout=min(left, _HEARD) if timeout >= 0 else _HEARD):
        left -= _HEARD
        if timeout >= 0 and left <= 0:
            return False
    return True


class Promise(Generic[T]):
    """A value, or an error, that some thread makes and any thread may wait for."""

    def __init__(self) -> None:
        self._made: Callable[[], T] | None = None
        """Returns the value or raises the error; ``None`` until there is one."""
        self._bell = Condition()

    def done(self) -> bool:
        """Return whether there is a value or an error."""
        return self._made is not None

    def set_result(self, value: T) -> None:
        """Give the value."""
        self._made = lambda: value  # one assignment: there is no moment at which only half of it is there
        self._bell.notify_all()

    def set_exception(self, error: BaseException) -> None:
        """Give the error."""

        def fail() -> T:
            raise error

        self._made = fail
        self._bell.notify_all()

    def result(self, timeout: float = -1) -> T:
        """Wait for the value; an interrupt ends the wait and nothing else.

        Args:
            timeout: seconds to wait at most; negative for no limit.

        Returns:
            The value.

        Raises:
            TimeoutError: there is neither value nor error yet.
        """
        self._bell.wait(self.done, timeout)
        if self._made is None:
            raise TimeoutError
        return self._made()


class Workers:
    """Threads that carry out what is put into their queue; they end when their owner is gone.

    Args:
        name: of the threads, followed by a number.
        count: of threads, which start with the first work.
    """

    def __init__(self, name: str, count: int):
        self.threads: tuple[threading.Thread, ...] = ()
        self._name, self._count = name, count
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # When the owner is gone, its reference is put itself, which tells the threads to end.
        self._end = weakref.ref(self, self._inbox.put)

    def submit(self, work: Callable[..., T], *args: Any) -> Promise[T]:
        """Hand work over; once this is done an interrupt does not undo it.

        Args:
            work: the function to call.
            *args: its arguments.

        Returns:
            What the function will return, or raise.
        """
        promise: Promise[T] = Promise()
        if not self.threads:
            self._start()
        # One call of a function in C: an interrupt comes before or after it.
        self._inbox.put((promise, work, args))
        return promise

    def close(self) -> None:
        """End the threads after what was submitted before."""
        self._inbox.put(None)

    def _start(self) -> None:
        """Start all threads; if an interrupt comes in between, more start next time, which does no harm."""
        threads = [
            threading.Thread(target=_serve, args=(self._inbox,), name=f"{self._name}_{number}", daemon=True)
            for number in range(self._count)
        ]
        for thread in threads:
            thread.start()
        _all.add(self)
        self.threads = tuple(threads)


_all: weakref.WeakSet[Workers] = weakref.WeakSet()


def _serve(inbox: queue.SimpleQueue[Any]) -> None:
    """Carry out what comes until the owner closes, or is gone, which puts the reference to it."""
    while isinstance(item := inbox.get(), tuple):
        promise, work, args = item
        try:
            promise.set_result(work(*args))
        except BaseException as error:
            promise.set_exception(error)
        del item, promise, work, args  # they must not live until the next item comes
    inbox.put(item)  # for the next thread


@atexit.register
def _end_all() -> None:
    """Let work under way end at exit: a thread that the interpreter stops inside JAX would abort the process."""
    # In a forked child the threads do not exist, and joining them would wait in vain.
    for workers in () if forks.is_child() else list(_all):
        workers.close()
        for thread in workers.threads:
            thread.join(_AT_EXIT)
