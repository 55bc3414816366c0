"""Whether a Python thread sleeps until another thread wakes it: then it cannot call anything by itself.

Read from the innermost Python frame, for the waits that Python's own modules consist of: ``Thread.join``, ``Condition``
(on which ``Event``, ``Barrier``, ``Semaphore``, ``queue.Queue`` and ``concurrent.futures.Future`` wait), an idle worker
of a ``ThreadPoolExecutor``, an idle ``asyncio`` loop, and the end of the interpreter. A timeout of one of the first two
is taken for a safety net. Whatever is not recognised counts as awake, a raw lock and ``time.sleep`` among them.
"""

from __future__ import annotations

import concurrent.futures.thread
import linecache
import selectors
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

_looking = threading.RLock()


def look(at: Callable[[Mapping[int, FrameType]], T]) -> T:
    """What ``at`` finds in the innermost Python frame of each other thread, by the thread's identifier.

    It must keep none of them. One thread looks at a time: the frames of two that look at each other would be a cycle,
    and keep the values that threads hold until garbage is collected, which is no time of the simulation.
    """
    with _looking:
        return at(_frames())


def _frames() -> dict[int, FrameType]:
    found = sys._current_frames()
    del found[threading.get_ident()]  # it would hold itself
    return found


def is_asleep(frame: FrameType, at: Mapping[int, FrameType]) -> bool:
    """Whether the thread that is in ``frame`` sleeps until another thread wakes it, or input arrives.

    Args:
        frame: its innermost Python frame. at: those of all threads (see ``look``).
    """
    file, name = frame.f_code.co_filename, frame.f_code.co_name
    if file == threading.__file__:
        return name == "_shutdown" or _is_joining(name, frame.f_locals) or _is_waiting(name, frame.f_locals)
    if _is_worker(frame):
        return _is_idle(frame.f_locals, at)
    return file == selectors.__file__ and name == "select" and _has_no_end(frame.f_locals) and not _is_ready(frame)


def is_napping(frame: FrameType) -> bool:
    """Whether the line that a thread is at calls some ``sleep``."""
    return "sleep(" in linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def _is_worker(frame: FrameType) -> bool:
    """Whether a worker of a ``ThreadPoolExecutor`` is between two items."""
    return frame.f_code.co_filename == concurrent.futures.thread.__file__ and frame.f_code.co_name == "_worker"


def _is_idle(names: Mapping[str, Any], at: Mapping[int, FrameType]) -> bool:
    """Whether a worker between two items, with these local names, has none to go on with.

    An empty queue does not say so: since Python 3.13 ``put`` hands the item over, and the worker need not have run
    since. The pool counts its idle workers, one less from the moment of a submission; if more than that are between
    two items, one has an item. Until Python 3.11 the count is too high once items have queued behind a full pool; there
    the moment between a worker's ``get`` and its next line is still taken for sleep, for nothing tells them apart.
    """
    queue, executor = names.get("work_queue"), names["executor_reference"]()
    if queue is None or executor is None or not queue.empty():
        return False
    between = sum(_is_worker(frame) and frame.f_locals.get("work_queue") is queue for frame in at.values())
    return between <= executor._idle_semaphore._value


def _has_no_end(names: Mapping[str, Any]) -> bool:
    """Whether an event loop waits for input alone: with a task that is ready, or a timer, it goes on by itself."""
    timeout = names.get("timeout")
    return timeout is None or timeout < 0


def _is_ready(frame: FrameType) -> bool:
    """Whether the event loop that waits in ``frame`` has been given something to do by another thread."""
    loop = frame.f_back.f_locals.get("self") if frame.f_back is not None else None
    return bool(getattr(loop, "_ready", ()))


def _is_joining(name: str, names: Mapping[str, Any]) -> bool:
    """``Thread.join`` of a thread that lives; until Python 3.12 it ends in a helper."""
    joined = names.get("self") if name in ("join", "_wait_for_tstate_lock") else None
    return isinstance(joined, threading.Thread) and joined.is_alive()


def _is_waiting(name: str, names: Mapping[str, Any]) -> bool:
    """``Condition.wait`` that was not notified yet: who notifies takes the waiter off the condition's list."""
    condition, waiter = names.get("self"), names.get("waiter")
    if name != "wait" or waiter is None or not isinstance(condition, threading.Condition):
        return False
    return waiter in getattr(condition, "_waiters", ())  # at once: other threads come and go
