"""Who holds a logical buffer: a token that the client's futures share, and that releases the buffer when it is gone.

Python may run a finalizer at any bytecode of any thread, and an interrupt inside ``__del__`` is lost. So the end of a
token runs no Python code: it is a call of ``SimpleQueue.put``, and the event loop's thread does the rest. A token is
made before anybody else knows of its buffer, so that a call that is interrupted anywhere holds nothing afterwards.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from pathways_nb.runtime.run_state import Entry


class Hold:
    """The right to a logical buffer; once nothing refers to it any more, the buffer is released."""

    __slots__ = ("__weakref__", "buffer")
    buffer: int


class Dropped(weakref.ref[Hold]):
    """What the event loop finds in its queue when the token of ``buffer`` is gone; the entry keeps it until then."""

    __slots__ = ("buffer",)
    buffer: int


def hold(buffer: int, entry: Entry, put: Callable[[Any], object]) -> Hold:
    """Return a token of a logical buffer.

    Args:
        buffer: the logical buffer.
        entry: its entry in the driver.
        put: puts into the event loop's queue, in C.
    """
    made = Hold()
    made.buffer = buffer
    dropped = Dropped(made, put)
    dropped.buffer = buffer
    entry.dropped = dropped
    return made


def at_once(changes: Iterable[object]) -> None:
    """Make changes that belong together, so that an interrupt comes before all of them or after them.

    Args:
        changes: an iterator in C over calls of functions in C, such as ``map(dict.update, ...)``: none of their
            bytecodes is Python's, and Python raises an interrupt between bytecodes only.
    """
    deque(changes, maxlen=0)
