"""Recognise a Python thread that is blocked until another thread wakes it.

Turns of client threads need this: a blocked thread cannot call anything by itself, so simulated time may advance
without it (see ``thread_turns``). Python offers no such query, therefore the innermost Python frame of the thread is
read. These waits are recognised:

- ``Thread.join``, and ``Condition.wait``, on which ``Event``, ``Barrier``, ``Semaphore``, ``queue.Queue`` and
  ``concurrent.futures.Future`` are built. A timeout is ignored here: it is assumed to guard against hanging.
- an idle worker of a ``ThreadPoolExecutor``, an idle ``asyncio`` event loop, and the end of the interpreter.

Everything else counts as running, a raw ``Lock`` and ``time.sleep`` among them: their C code leaves no Python frame
that shows the wait. An error in this direction stops simulated time, which ``held_up`` reports. The opposite error, to
treat a running thread as blocked, would make the trace depend on real time, so a waiter that was already notified, but
has not run since, does not count as blocked.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import gc
import linecache
import selectors
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, TypeVar

from pathways_nb.plan.source_lines import line_of
from pathways_nb.runtime.sim.pool_items import is_handed

T = TypeVar("T")

_looking = threading.RLock()


def look(at: Callable[[Mapping[int, FrameType]], T]) -> T:
    """Call ``at`` with the innermost Python frames of all other threads and return its result.

    One thread looks at a time: if two looked at each other, their frames would form a reference cycle. Values that the
    threads hold would then be released when garbage is collected, at no defined simulated time.

    Args:
        at: receives frames by thread identifier; it must keep none of them.

    Returns:
        What ``at`` returns.
    """
    with _looking:
        return at(_frames())


def _frames() -> dict[int, FrameType]:
    collects = gc.isenabled()
    gc.disable()  # up to Python 3.11.8, a collection inside may deadlock with a thread that starts (gh-106883)
    try:
        found = sys._current_frames()
    finally:
        if collects:
            gc.enable()
    del found[threading.get_ident()]  # this frame would refer to itself
    return found


def is_asleep(frame: FrameType, at: Mapping[int, FrameType]) -> bool:
    """Return whether a thread is blocked until another thread wakes it or input arrives.

    Args:
        frame: the thread's innermost Python frame.
        at: the frames of all threads, by identifier (see ``look``).
    """
    file, name = frame.f_code.co_filename, frame.f_code.co_name
    if file == threading.__file__:
        return name == "_shutdown" or _is_joining(name, frame.f_locals) or _is_waiting(name, frame.f_locals)
    if _is_worker(frame):
        return _is_idle(frame.f_locals, at)
    return file == selectors.__file__ and name == "select" and _is_waiting_loop(frame.f_locals)


def is_napping(frame: FrameType) -> bool:
    """Return whether the source line that a thread executes calls a function named ``sleep``."""
    return "sleep(" in linecache.getline(frame.f_code.co_filename, line_of(frame))


def _is_worker(frame: FrameType) -> bool:
    """Return whether the thread is a ``ThreadPoolExecutor`` worker between two work items."""
    return frame.f_code.co_filename == concurrent.futures.thread.__file__ and frame.f_code.co_name == "_worker"


def _is_idle(names: Mapping[str, Any], at: Mapping[int, FrameType]) -> bool:
    """Return whether a worker between two items has no item to continue with.

    An empty queue does not prove it: since Python 3.13 ``put`` hands the item to the waiting worker, which may not have
    run since. The pool counts its idle workers and decrements the count at each submission. If more workers than that
    are between two items, one of them has an item. Up to Python 3.11 the count is too high once items have queued
    behind a full pool, so the items that were not begun are counted, too (see ``pool_items``).

    Args:
        names: local variables of the worker's frame.
        at: the frames of all threads.
    """
    queue, executor = names.get("work_queue"), names["executor_reference"]()
    if queue is None or executor is None or not queue.empty() or is_handed(executor):
        return False
    between = sum(_is_worker(frame) and frame.f_locals.get("work_queue") is queue for frame in at.values())
    return between <= executor._idle_semaphore._value


def _is_waiting_loop(names: Mapping[str, Any]) -> bool:
    """Return whether an event loop waits for input only; with a ready task or a timer it continues by itself.

    Args:
        names: local variables of its selector's frame.
    """
    timeout = names.get("timeout")
    return (timeout is None or timeout < 0) and not _is_ready(names.get("self"))


def _is_ready(selector: Any) -> bool:
    """Return whether another thread has given a callback to the event loop that waits on a selector.

    The loop is found by the pipe that wakes it. The frame that called the selector has it, too, but to read variables
    of a frame that goes on meanwhile has ended in a crash of Python 3.11: values of an earlier look are released then,
    and what runs as they are lets the other thread leave the frame.
    """
    if not isinstance(selector, selectors.BaseSelector):
        return False
    try:
        keys = list((selector.get_map() or {}).values())
    except RuntimeError:  # it is changed at this moment, so its thread is awake
        return True
    for key in keys:
        for handle in key.data if isinstance(key.data, tuple) else ():
            loop = getattr(getattr(handle, "_callback", None), "__self__", None)
            if isinstance(loop, asyncio.AbstractEventLoop):
                return bool(getattr(loop, "_ready", ()))
    return False


def _is_joining(name: str, names: Mapping[str, Any]) -> bool:
    """Return whether the frame is in ``Thread.join`` of a live thread; up to Python 3.12 a helper does the waiting."""
    joined = names.get("self") if name in ("join", "_wait_for_tstate_lock") else None
    return isinstance(joined, threading.Thread) and joined.is_alive()


def _is_waiting(name: str, names: Mapping[str, Any]) -> bool:
    """Return whether the frame is in a ``Condition.wait`` that was not notified; ``notify`` removes the waiter."""
    condition, waiter = names.get("self"), names.get("waiter")
    if name != "wait" or waiter is None or not isinstance(condition, threading.Condition):
        return False
    return waiter in getattr(condition, "_waiters", ())  # one operation: other threads change the list meanwhile
