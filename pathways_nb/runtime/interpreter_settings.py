"""Settings of Python that are other ones while controllers have threads of their own.

- *Switch interval*: dispatchers launch from their own threads. While a cell computes in Python, each launch would wait
  for up to 5 ms, the usual interval after which Python switches threads.
- *Garbage collection*: a training step of hundreds of results leaves thousands of objects to the next one. After the
  usual 700 new objects those are looked at, and soon count as old: with 901 leaves a full collection, which stops every
  thread for 0.1 s and more, came every 75 steps, and a step took 20 % less without (measured).

They belong to the whole process, so they are restored when the last controller that changed them closes.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

SWITCH_SECONDS = 5e-4
"""The interval after which threads switch."""
NEW_OBJECTS = 20_000
"""New objects after which Python looks for garbage among them."""


class _Setting(NamedTuple):
    """A setting: how it is read and written, and what it is to be, given what it is."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    wanted: Callable[[Any], Any]


def _seldom(threshold: tuple[int, int, int]) -> tuple[int, int, int]:
    first, *others = threshold
    return max(first, NEW_OBJECTS) if first else 0, *others  # type: ignore[return-value]  # 0: it is switched off


_SETTINGS = (
    _Setting(sys.getswitchinterval, sys.setswitchinterval, lambda usual: min(usual, SWITCH_SECONDS)),
    _Setting(gc.get_threshold, lambda threshold: gc.set_threshold(*threshold), _seldom),
)
_lock = threading.Lock()
_holders: set[InterpreterSettings] = set()
"""Those that are not released yet."""
_before: tuple[Any, ...] = ()
"""What to restore, read when the first holder was made."""


class InterpreterSettings:
    """A claim on these settings, which last until all claims of the process are released."""

    def __init__(self) -> None:
        global _before
        with _lock:
            if not _holders:
                _before = tuple(one.read() for one in _SETTINGS)
                for one, usual in zip(_SETTINGS, _before, strict=True):
                    one.write(one.wanted(usual))
            _holders.add(self)

    def release(self) -> None:
        """Restore them if no other claim is left, each unless other code has changed it meanwhile."""
        with _lock:
            if self not in _holders:
                return
            _holders.discard(self)
            for one, usual in zip(_SETTINGS, _before, strict=True) if not _holders else ():
                if one.read() == one.wanted(usual):
                    one.write(usual)
