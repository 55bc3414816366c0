"""Items of thread pools (``ThreadPoolExecutor.submit``, ``asyncio.to_thread``) take turns, as calls do.

Two items that ran at once would end in the order of real time, and whatever waits for them would go on in that order:
the tasks of an event loop, ``as_completed``. So the start of an item is a stopping point (see ``thread_turns``), and
items are ordered by their submission, not by the workers that chance gives them to.

Python has no hook for this. While a simulated controller is attached, the class of which pools make their items is
replaced by one of its own kind that knows when it was submitted. Items of the controller's own pools are left alone.
"""

from __future__ import annotations

import concurrent.futures.thread as pools
import itertools
import sys
import threading
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

_Original: Any = pools._WorkItem
_serials = itertools.count(1)
_following: list[Follower] = []
_not_begun: WeakKeyDictionary[Any, WeakSet[Item]] = WeakKeyDictionary()
"""By pool, its items that no worker has begun."""
_under_way: WeakKeyDictionary[threading.Thread, int] = WeakKeyDictionary()
"""By worker, the serial of its item."""


class Follower(Protocol):
    """Who gives items their turns."""

    def admits_item(self) -> bool:
        """Return whether an item that the current thread submits now takes turns."""

    def begin_item(self) -> None:
        """Stop until it is the turn of the item that the current thread has begun."""


class Item(_Original):
    """An item of a pool."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        follower = _following[-1] if _following else None
        self._serial, self._follower = next(_serials), follower if follower and follower.admits_item() else None
        pool = sys._getframe(1).f_locals["self"]  # the frame is ``submit`` of the pool
        self._waiting = _not_begun.setdefault(pool, WeakSet())
        self._waiting.add(self)

    def run(self, *args: Any) -> None:
        """Run it at its turn."""
        mine = threading.current_thread()
        self._waiting.discard(self)
        _under_way[mine] = self._serial
        try:
            if self._follower in _following:
                self._follower.begin_item()
            super().run(*args)
        finally:
            _under_way.pop(mine, None)


def follow(follower: Follower) -> None:
    """Let items that are submitted from now on take their turns."""
    _following.append(follower)
    pools._WorkItem = Item  # type: ignore[misc]


def leave(follower: Follower) -> None:
    """End that: items that have not begun run as they come."""
    if follower in _following:
        _following.remove(follower)
    if not _following:
        pools._WorkItem = _Original  # type: ignore[misc]


def is_handed(pool: Any) -> bool:
    """Return whether a worker of a pool holds an item that it has not begun, or will take one from the queue."""
    return len(_not_begun.get(pool, ())) > pool._work_queue.qsize()


def serial_of(thread: threading.Thread) -> int:
    """Return the number of the item that a thread runs, in the order of submission; 0 if it is no worker."""
    return _under_way.get(thread, 0)
