"""Detect processes made by ``os.fork()`` after devices were attached, and refuse to work in them.

Such a child has the controller's memory but none of the threads that work for it. JAX's own threads stay in the parent
as well, so not even devices attached anew would work: compiling for them hangs. Entry points of ``session`` therefore
call ``refuse``; what ends by itself in a child (blocks, finalizers, the exit) asks ``is_child`` and ends without
waiting. The state is set by a hook that Python calls in the child.
"""

from __future__ import annotations

import os

from pathways_nb.errors import NotAttachedError


class _ForkState:
    running = False
    """Whether devices were attached in this process, or in its parent before the fork."""
    parent = 0
    """Id of the process that this one was forked from while ``running``; 0 if it was not."""


_state = _ForkState()


def started() -> None:
    """Note that devices are attached: from now on, children of this process must not use them."""
    _state.running = True


def is_child() -> bool:
    """Return whether this process was forked from one that had attached devices."""
    return _state.parent != 0


def refuse() -> None:
    """Raise in a forked child; do nothing elsewhere.

    Raises:
        NotAttachedError: names the parent and what to do instead.
    """
    if _state.parent:
        raise NotAttachedError(
            f"this process is a child that os.fork() made of process {_state.parent}, which had attached devices: "
            f"their threads, and those of JAX, exist in process {_state.parent} only. Start the child with "
            f'multiprocessing.get_context("spawn") or subprocess and call pw.attach(...) in it, or send it host values '
            f"(y.result() before the fork)."
        )


def _in_child() -> None:
    # Of a child's child, the process with the threads is still the first parent.
    if _state.running and not _state.parent:
        _state.parent = os.getppid()


# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
