"""The thread that runs while others are stopped: for how long, what the user is shown, and when to give up.

``thread_turns`` stops all client threads while one of them runs. A thread that computes or compiles will stop later. A
thread that waits in a way that ``blocked_threads`` does not recognise never does, and the two cannot be told apart. So
nothing is done at first; ``thread_turns`` then applies these limits, in real seconds:

- after ``NAMED_AFTER``, a thread in no block is ignored from then on, with a line that says so if it has never called;
  a client's thread is named in a line with its source position, the lock that it waits for if that can be found out,
  and the remedy;
- after ``REFUSED_AFTER``, the stopped threads fail with the same text, so that a script ends. They do not fail where
  the line is shown beside a picture: a person at a notebook sees it and can interrupt.

The limits do not apply while JAX or this package works in the thread (``is_making``), because compiling may take
long. This module measures and words; ``thread_turns`` decides which thread runs.
"""

from __future__ import annotations

import inspect
import linecache
import os
import re
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from types import FrameType
from weakref import WeakSet

import jax

from pathways_nb import errors
from pathways_nb.plan import source_lines
from pathways_nb.runtime.sim.blocked_threads import look

NAMED_AFTER, REFUSED_AFTER = 2.0, 60.0
"""Real seconds after which the running thread is named, and after which the stopped threads fail in a script."""

LOOKS = 1e-3, 0.02
"""Real seconds between two inspections of the running thread, at first and later."""

Say = Callable[[str], bool]
"""Shows a line to the user, or removes it if called with ``""``; returns whether it is shown beside a picture."""

_STANDARD = os.path.dirname(os.__file__) + os.sep
_MAKERS = tuple(os.path.dirname(os.path.abspath(str(made.__file__))) + os.sep for made in (errors, jax))
"""Folders of this package and of JAX."""
_RLOCK = type(threading.RLock())
_NAMES = re.compile(r"[A-Za-z_][\w.]*")


class HeldUp:
    """The running thread for which others are stopped, for how long, and what was shown about it.

    Args:
        say: shows a line to the user.
    """

    def __init__(self, say: Say):
        self._say = say
        self.thread: threading.Thread | None = None
        """The running thread; ``None`` if no thread is stopped, or none runs."""
        self._since = 0.0
        self._said, self.is_shown = False, False
        """Whether the thread was named, and whether the line is shown beside a picture."""
        self._without: WeakSet[threading.Thread] = WeakSet()
        """Threads about which the user was told that time advances without them."""

    def by(self, thread: threading.Thread | None) -> float:
        """Note which thread runs now; a change restarts the count and removes the line about the thread before.

        Args:
            thread: the running thread; ``None`` if there is none.

        Returns:
            For how many real seconds it has run.
        """
        if thread is None or thread is not self.thread:
            if self._said:
                self._say("")
            self._said, self.is_shown = False, False
            self.thread, self._since = thread, monotonic()
            return 0.0
        return self.seconds

    @property
    def seconds(self) -> float:
        """Real seconds for which the others have been stopped for the thread."""
        return monotonic() - self._since

    def begin_again(self) -> None:
        """Restart the count: the thread is known to make progress."""
        self._since = monotonic()

    def name(self, thread: threading.Thread) -> None:
        """Show, once, which thread keeps the others stopped."""
        if not self._said:
            self._said = True
            self.is_shown = self._say(
                f"{explained(thread)} A thread that sleeps in time.sleep, or on a raw lock, is not seen to sleep: "
                f"after {REFUSED_AFTER:.0f} s it is an error, where no picture shows this line."
            )

    def go_on_without(self, thread: threading.Thread) -> None:
        """Show that simulated time advances although ``thread`` runs and has not called."""
        self._without.add(thread)
        self._say(f"simulated time goes on without thread {thread.name!r}{_where(thread)}, which has not called yet")

    def is_back(self, thread: threading.Thread) -> None:
        """Remove the line about ``thread``, which takes part again."""
        if thread in self._without:
            self._without.discard(thread)
            if not self._without:
                self._say("")


def is_making(thread: threading.Thread) -> bool:
    """Return whether JAX or this package traces, lowers or compiles in ``thread``, and so shows its own progress.

    The innermost frame outside the standard library decides. Code of the user that JAX calls while it traces does not
    count as work of JAX, because it may wait for something that never happens.
    """

    def made(at: Mapping[int, FrameType]) -> bool:
        frame = at.get(thread.ident or 0)
        while frame is not None and _is_standard(frame.f_code.co_filename):
            frame = frame.f_back
        return frame is not None and frame.f_code.co_filename.startswith(_MAKERS)

    return look(made)


def explained(thread: threading.Thread) -> str:
    """Explain why simulated time stands still: where ``thread`` is, which lock it waits for, what to do."""
    return (
        f"simulated time stands still: thread {thread.name!r}{_where(thread)} neither calls, waits nor ends"
        f"{_lock_of(thread)}. If it only computes, the others go on when it has; if it waits for a lock that one of "
        f"them holds, release that before y.wait(), or use a threading.Condition. Else let it wait by y.wait() or "
        f"while not y.done(), leave its `with` block, or end."
    )


def _is_standard(filename: str) -> bool:
    """Return whether a file belongs to Python's standard library."""
    return filename.startswith("<frozen") or (filename.startswith(_STANDARD) and "site-packages" not in filename)


def _where(thread: threading.Thread) -> str:
    """Return ``" (at file:line)"`` for the user's line that a thread executes, or an empty text."""

    def line(at: Mapping[int, FrameType]) -> str:
        frame = at.get(thread.ident or 0)
        return source_lines.user_line(frame) if frame is not None else ""

    return f" (at {here})" if (here := look(line)) else ""


def _lock_of(thread: threading.Thread) -> str:
    """Return which lock a thread waits for and who holds it; only an ``RLock`` or ``Condition`` records its owner."""
    name, owner = look(lambda at: _held_lock(at.get(thread.ident or 0)))
    holders = [each for each in threading.enumerate() if each.ident == owner and each is not thread]
    return f": it waits for {name}, which thread {holders[0].name!r}{_where(holders[0])} holds" if holders else ""


def _held_lock(frame: FrameType | None) -> tuple[str, int]:
    """Find a lock that is held in the source line that a frame executes.

    Python does not tell which lock a thread waits for, so each name in the line is looked up in the frame's variables.
    Attributes are read statically: a property could run code of the user in the event loop's thread.

    Returns:
        The lock's name and the identifier of the thread that holds it; ``"", 0`` if none is found.
    """
    if frame is None:
        return "", 0
    variables = {**frame.f_globals, **frame.f_locals}
    for words in _NAMES.findall(linecache.getline(frame.f_code.co_filename, frame.f_lineno)):
        first, *attributes = words.split(".")
        name, value = first, variables.get(first)
        for attribute in (*attributes, ""):
            lock = value._lock if isinstance(value, threading.Condition) else value  # type: ignore[attr-defined]
            if isinstance(lock, _RLOCK) and (owner := re.search(r"owner=([1-9]\d*)", repr(lock))):
                return name, int(owner[1])
            name, value = f"{name}.{attribute}", inspect.getattr_static(value, attribute, None)  # runs no property
    return "", 0
