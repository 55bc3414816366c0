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
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from types import FrameType
from typing import Any
from weakref import WeakSet

import jax

from pathways_nb import errors
from pathways_nb.plan import source_lines
from pathways_nb.plan.source_lines import line_of
from pathways_nb.runtime.sim.blocked_threads import look

NAMED_AFTER, REFUSED_AFTER = 2.0, 60.0
"""Real seconds after which the running thread is named, and after which the stopped threads fail in a script."""

LOOKS = 1e-3, 0.02
"""Real seconds between two inspections of the running thread, at first and later."""

Say = Callable[[str], bool]
"""Shows a line to the user, or removes it if called with ``""``; returns whether it is shown beside a picture."""

Stopped = Sequence[tuple[threading.Thread, str]]
"""Threads that are stopped, each with what it waits for, in words; empty if that is unknown."""

_STANDARD = os.path.dirname(os.__file__) + os.sep
_MAKERS = tuple(os.path.dirname(os.path.abspath(str(made.__file__))) + os.sep for made in (errors, jax))
"""Folders of this package and of JAX."""
_RLOCK, _LOCK = type(threading.RLock()), type(threading.Lock())
_MOST_NAMED = 4
"""Largest number of stopped threads that a text names."""
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

    def name(self, thread: threading.Thread, call: str = "", stopped: Stopped = ()) -> None:
        """Show, once, which thread keeps the others stopped; see ``explained``."""
        if not self._said:
            self._said = True
            self.is_shown = self._say(
                f"{explained(thread, call, stopped)} A thread that sleeps in time.sleep, or on a raw lock, is not seen "
                f"to sleep: after {REFUSED_AFTER:.0f} s it is an error, where no picture shows this line."
            )

    def go_on_without(self, thread: threading.Thread) -> None:
        """Show that simulated time advances although ``thread`` runs and has not called."""
        self._without.add(thread)
        self._say(f"simulated time goes on without thread {thread.name!r}{where_of(thread)}, which has not called yet")

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


def explained(thread: threading.Thread, call: str = "", stopped: Stopped = ()) -> str:
    """Return why simulated time stands still: where ``thread`` is, which lock it waits for, what to do.

    Args:
        thread: the thread that neither stops nor ends.
        call: name of the program or computation whose call it is in, if it is in one.
        stopped: the threads that are stopped meanwhile, each with what it waits for.

    Returns:
        The explanation, as sentences.
    """
    rows = [f"{each.name!r}{where_of(each)}{f' for {what}' if what else ''}" for each, what in stopped]
    more = f" and {len(rows) - _MOST_NAMED} more" if len(rows) > _MOST_NAMED else ""
    inside = f", in its call of {call!r}," if call else ""
    waiting = f" Until then wait: {'; '.join(rows[:_MOST_NAMED])}{more}." if rows else ""
    return (
        f"simulated time stands still: thread {thread.name!r}{where_of(thread)}{inside} neither calls, waits nor ends"
        f"{lock_of(thread)}. If it only computes, the others go on when it has; if it waits for a lock that one of "
        f"them holds, release that before y.wait(), or use a threading.Condition. Else let it wait by y.wait() or "
        f"while not y.done(), leave its `with` block, or end.{waiting}"
    )


def _is_standard(filename: str) -> bool:
    """Return whether a file belongs to Python's standard library."""
    return filename.startswith("<frozen") or (filename.startswith(_STANDARD) and "site-packages" not in filename)


def where_of(thread: threading.Thread) -> str:
    """Return ``" (at file:line)"`` for the user's line that a thread executes, or an empty text."""

    def line(at: Mapping[int, FrameType]) -> str:
        frame = at.get(thread.ident or 0)
        return source_lines.user_line(frame) if frame is not None else ""

    return f" (at {here})" if (here := look(line)) else ""


def lock_of(thread: threading.Thread) -> str:
    """Return which lock a thread waits for, and who holds it as far as that can be seen; empty if there is none."""
    name, owner = look(lambda at: _held_lock(at.get(thread.ident or 0), at))
    holders = [each for each in threading.enumerate() if each.ident == owner and each is not thread]
    if holders:
        return f": it waits for {name}, which thread {holders[0].name!r}{where_of(holders[0])} holds"
    return f": it waits for {name}, which is locked" if name and not owner else ""


def _held_lock(frame: FrameType | None, at: Mapping[int, FrameType]) -> tuple[str, int]:
    """Find a lock that is held in the source line that a frame executes.

    Python does not tell which lock a thread waits for, so each name in the line is looked up in the frame's variables.
    An ``RLock`` or ``Condition`` records its owner; a plain lock's is the thread that is in a ``with`` block of it.

    Args:
        frame: of the thread that waits.
        at: the frames of all threads, by identifier.

    Returns:
        The lock's name and the identifier of the thread that holds it, 0 if that is unknown; ``"", 0`` if none is
        found.
    """
    while frame is not None and _is_standard(frame.f_code.co_filename):  # it waits on a lock of its own
        frame = frame.f_back
    if frame is None:
        return "", 0
    for name, lock in _locks(linecache.getline(frame.f_code.co_filename, line_of(frame)), frame):
        if isinstance(lock, _RLOCK):
            if owner := re.search(r"owner=([1-9]\d*)", repr(lock)):
                return name, int(owner[1])
        elif lock.locked():
            return name, next((ident for ident, other in at.items() if other is not frame and _holds(other, lock)), 0)
    return "", 0


def _locks(line: str, frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the locks that a source line names, each with its name in the line.

    Attributes are read statically: a property could run code of the user in the event loop's thread.
    """
    variables = {**frame.f_globals, **frame.f_locals}
    for words in _NAMES.findall(line):
        first, *attributes = words.split(".")
        name, value = first, variables.get(first)
        for attribute in (*attributes, ""):
            lock = value._lock if isinstance(value, threading.Condition) else value  # type: ignore[attr-defined]
            if isinstance(lock, (_RLOCK, _LOCK)):
                yield name, lock
            name, value = f"{name}.{attribute}", inspect.getattr_static(value, attribute, None)  # runs no property


def _holds(frame: FrameType | None, lock: Any) -> bool:
    """Return whether a frame, or one that called it, is inside a ``with`` block of a lock."""
    while frame is not None:
        file, at, indent = frame.f_code.co_filename, line_of(frame), math.inf
        for number in range(at, frame.f_code.co_firstlineno, -1):
            line = linecache.getline(file, number)
            inner = len(line) - len(line.lstrip())
            if line.strip() and inner < indent:
                is_block = number < at and line.lstrip().startswith("with ")
                if is_block and any(held is lock for _, held in _locks(line, frame)):
                    return True
                indent = inner
        frame = frame.f_back
    return False
