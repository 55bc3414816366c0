"""What an interrupt cancels: what this thread has queued since its cell began, and nothing of another thread.

A cell of IPython begins at its event ``pre_run_cell``. Elsewhere the part of a program that an interrupt ends is taken
to begin with the outermost ``pw.record`` or client block that is open in this thread; without one nothing is cancelled.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from pathways_nb.plan import source_lines
from pathways_nb.program import context
from pathways_nb.runtime.run_state import asked
from pathways_nb.session import default_controller
from pathways_nb.session.session import Session
from pathways_nb.util import forks, interrupts
from pathways_nb.util.displaying import ipython_shell
from pathways_nb.util.progress import tell_reader
from pathways_nb.util.words import counted


class _Begun(threading.local):
    cell: int | None = None
    """The number of the first call that the cell under way may make; ``None`` outside a cell."""

    def __init__(self) -> None:
        self.blocks: list[tuple[object, int]] = []
        """Each open block, outermost first, with the same number for it."""


_begun = _Begun()


def enter(block: object) -> None:
    """Begin a block of this thread."""
    _begun.blocks.append((block, next(asked)))


def leave(block: object) -> None:
    """End a block; of a generator that is collected elsewhere, this may be another thread."""
    found = [at for at, each in enumerate(_begun.blocks) if each[0] is block]
    for at in found[-1:]:
        del _begun.blocks[at]


def cancel(session: Session | None) -> None:
    """Cancel what this thread has queued since its cell began, and say how many calls that were.

    What is on devices already runs to its end.
    """
    driver = session.driver_or_none if session is not None and not forks.is_child() else None
    since = _begun.cell if _begun.cell is not None else next((number for _, number in _begun.blocks), None)
    if session is None or driver is None or since is None:
        return
    thread = threading.get_ident()
    batched = sum(batcher.interrupt(thread) for _, batcher in tuple(session.recordings))
    # A copy, since the event loop goes on meanwhile.
    calls = [call for call in driver.runs.copy().values() if call.thread == thread and call.asked >= since]
    calls = [call for call in calls if not (call.stopped or call.finished)]
    begun = sum(call.begun for call in calls)
    if calls:
        driver.cancel([call.serial for call in calls])
    if calls or batched:
        _say(batched + len(calls) - begun, begun)


def _say(cancelled: int, begun: int) -> None:
    what, was = "cell" if _begun.cell is not None else "block", "was" if cancelled == 1 else "were"
    said = [f"{counted(cancelled, 'queued call')} of this {what} {was} cancelled"] if cancelled else []
    said += [f"{counted(begun, 'call')} already on devices will end"] if begun else []
    tell_reader(f"interrupted: {'; '.join(said)}.")


def _before_cell(*_: Any) -> None:
    interrupts.guard()
    context.close_left_open()
    _begun.blocks.clear()  # a cell that was interrupted may have left some
    _begun.cell = next(asked)


def _after_cell(result: Any) -> None:
    # Between two statements it is raised in IPython's own code, which counts as before the execution.
    if isinstance(result.error_in_exec or result.error_before_exec, KeyboardInterrupt):
        cancel(default_controller.peek())


def _rendered() -> list[str]:
    """Return the traceback of an interrupt as IPython shows it."""
    error = sys.exc_info()[1]
    return source_lines.ipython_traceback(error) if error is not None else []


def watch_cells() -> None:
    """Have an interrupt of an IPython cell cancel what the cell has queued; do nothing outside IPython."""
    shell = ipython_shell()
    if shell is None:
        return
    interrupts.rendered = _rendered
    for event, function in (("pre_run_cell", _before_cell), ("post_run_cell", _after_cell)):
        if function not in shell.events.callbacks[event]:
            shell.events.register(event, function)
    if _begun.cell is None:
        _begun.cell = next(asked)  # the cell under way
