"""For which thread simulated time stands still, and what a person is told of it; ``turns`` decides who runs."""

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
"""Real seconds after which a thread that holds the others up is named, and after which they fail in a script."""

LOOKS = 1e-3, 0.02
"""Real seconds between two looks at such a thread, at first and later."""

Say = Callable[[str], bool]
"""Tells a person a line, or with ``""`` that it is out of date; returns whether it stands beside a picture."""

_STANDARD = os.path.dirname(os.__file__) + os.sep
_MAKERS = tuple(os.path.dirname(os.path.abspath(str(made.__file__))) + os.sep for made in (errors, jax))
"""Where this package and JAX lie."""
_RLOCK = type(threading.RLock())
_NAMES = re.compile(r"[A-Za-z_][\w.]*")


class HeldUp:
    """The threads that stand at points, as long as another one runs.

    Args:
        say: tells a person which thread that is.
    """

    def __init__(self, say: Say):
        self._say = say
        self.thread: threading.Thread | None = None
        """The one that runs."""
        self._since = 0.0
        self._said, self.is_shown = False, False
        """Whether it has been named, and that beside a picture."""
        self._without: WeakSet[threading.Thread] = WeakSet()
        """Threads without which time is said to go on."""

    def by(self, thread: threading.Thread | None) -> float:
        """They stand still for ``thread`` now; returns for how many real seconds they have."""
        if thread is None or thread is not self.thread:
            if self._said:
                self._say("")
            self._said, self.is_shown = False, False
            self.thread, self._since = thread, monotonic()
            return 0.0
        return self.seconds

    @property
    def seconds(self) -> float:
        """For how many real seconds they have stood still for it."""
        return monotonic() - self._since

    def begin_again(self) -> None:
        """It is known what it does: its time counts from now."""
        self._since = monotonic()

    def name(self, thread: threading.Thread) -> None:
        """Say, once, for whom they stand still."""
        if not self._said:
            self._said = True
            self.is_shown = self._say(
                f"{explained(thread)} A thread that sleeps in time.sleep, or on a raw lock, is not seen to sleep: "
                f"after {REFUSED_AFTER:.0f} s it is an error, where no picture shows this line."
            )

    def go_on_without(self, thread: threading.Thread) -> None:
        """Say that time passes though ``thread`` neither sleeps nor has called."""
        self._without.add(thread)
        self._say(f"simulated time goes on without thread {thread.name!r}{_where(thread)}, which has not called yet")

    def is_back(self, thread: threading.Thread) -> None:
        """It takes part again: what was said of it is out of date."""
        if thread in self._without:
            self._without.discard(thread)
            if not self._without:
                self._say("")


def is_making(thread: threading.Thread) -> bool:
    """Whether JAX or this package is at work in ``thread``: it traces, lowers or compiles, and tells of that itself.

    The user's own code in a trace may wait for something that never comes.
    """

    def made(at: Mapping[int, FrameType]) -> bool:
        frame = at.get(thread.ident or 0)
        while frame is not None and _is_standard(frame.f_code.co_filename):
            frame = frame.f_back
        return frame is not None and frame.f_code.co_filename.startswith(_MAKERS)

    return look(made)


def explained(thread: threading.Thread) -> str:
    """Explain that time stands still for ``thread``: where it is, which lock it waits for, what to do."""
    return (
        f"simulated time stands still: thread {thread.name!r}{_where(thread)} neither calls, waits nor ends"
        f"{_lock_of(thread)}. If it only computes, the others go on when it has; if it waits for a lock that one of "
        f"them holds, release that before y.wait(), or use a threading.Condition. Else let it wait by y.wait() or "
        f"while not y.done(), leave its `with` block, or end."
    )


def _is_standard(filename: str) -> bool:
    return filename.startswith("<frozen") or (filename.startswith(_STANDARD) and "site-packages" not in filename)


def _where(thread: threading.Thread) -> str:
    def line(at: Mapping[int, FrameType]) -> str:
        frame = at.get(thread.ident or 0)
        return source_lines.user_line(frame) if frame is not None else ""

    return f" (at {here})" if (here := look(line)) else ""


def _lock_of(thread: threading.Thread) -> str:
    """Which lock it waits for and who holds that, where it can be known: an ``RLock``, a ``Condition`` knows."""
    name, owner = look(lambda at: _held_lock(at.get(thread.ident or 0)))
    holders = [each for each in threading.enumerate() if each.ident == owner and each is not thread]
    return f": it waits for {name}, which thread {holders[0].name!r}{_where(holders[0])} holds" if holders else ""


def _held_lock(frame: FrameType | None) -> tuple[str, int]:
    """The name of a lock in the line that a frame is at, and the identifier of the thread that holds it."""
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
            name, value = f"{name}.{attribute}", inspect.getattr_static(value, attribute, None)  # runs no code
    return "", 0
