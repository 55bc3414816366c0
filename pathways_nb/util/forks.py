"""Children made by ``os.fork()``: they have the controller's memory, and none of the threads that carry it out.

JAX's own threads stay in the parent, too, so not even devices attached anew would work: compiling for them hangs. Every
door refuses at once in such a child, and what ends there by itself (blocks, finalizers, the exit) ends without waiting.
"""

from __future__ import annotations

import os

from pathways_nb.errors import NotAttachedError


class _State:
    running = False
    """Whether an engine has started in this process, or had when it was forked."""
    parent = 0
    """The process that this one was forked from while ``running``; 0 if it was not."""


_state = _State()


def started() -> None:
    """An engine has begun: from now on this process's children are not to use it."""
    _state.running = True


def is_child() -> bool:
    """Whether this process was forked from one whose engine had started."""
    return _state.parent != 0


def refuse() -> None:
    """Raise in a forked child.

    Raises:
        NotAttachedError: naming the parent and what to do instead.
    """
    if _state.parent:
        raise NotAttachedError(
            f"this process is a child that os.fork() made of process {_state.parent}, which had attached devices: "
            f"their threads, and those of JAX, exist in process {_state.parent} only. Start the child with "
            f'multiprocessing.get_context("spawn") or subprocess and call pw.attach(...) in it, or send it host values '
            f"(y.result() before the fork)."
        )


def _in_child() -> None:
    if _state.running and not _state.parent:
        _state.parent = os.getppid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
