"""Progress of long work: nothing for two seconds, then a line at most once a second, more seldom where lines stay.

One class for all that may take long: compiling, calibrating, a sweep. It has no thread; the code that works calls
``tell`` between two pieces of work, so a line is always true when it is written.

In a notebook the line stands in the cell that runs, each in place of the one before, and goes when the work or the cell
ends; elsewhere lines go to standard error. What must not be missed (``tell_reader``) stays in the cell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

from pathways_nb.util.displaying import ipython_shell

PATIENCE, PAUSE = 2.0, 1.0
"""Seconds before the first line of progress (``PATIENCE``), and between two lines (``PAUSE``)."""
_GROWTH = 1.5
"""Where each line stays, the next comes when so many times the seconds have passed: a minute is seven lines."""
_GONE = {
    "text/html": "<style>.jp-OutputArea-child:has([data-pw-gone]) { display: none }</style><span data-pw-gone></span>",
    "text/plain": "",
}
"""What stands where a line has gone: an output cannot be taken back, but it can hide itself."""
_handles: list[Any] = []
"""The handle of the output that shows progress in the cell that runs; empty for none."""
_watched: list[Any] = []
"""The shell whose cells' ends remove the line."""


def tell_reader(line: str) -> None:
    """Tell the user a line that stays: in a notebook as text of the cell, else on standard error, flushed."""
    if _notebook() is not None:
        from IPython.display import display

        display({"text/plain": line}, raw=True)
        return
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def show_progress(line: str) -> None:
    """Show how far some work is, in place of the line before; an empty line removes it.

    In a notebook it is one output of the cell that runs, elsewhere a line on standard error.
    """
    shell = _notebook()
    if shell is None:
        if line:
            tell_reader(line)
        return
    from IPython.display import display

    if shell not in _watched:
        shell.events.register("post_run_cell", lambda *_: show_progress(""))
        _watched[:] = [shell]
    bundle = {"text/plain": line} if line else _GONE
    if _handles:
        _handles[0].update(bundle, raw=True)
    elif line:
        _handles.append(display(bundle, raw=True, display_id=True))
    if not line:
        _handles.clear()


def _notebook() -> Any:
    """Return the shell of a notebook's kernel; ``None`` in a terminal and in a script."""
    shell = ipython_shell()
    return shell if getattr(shell, "kernel", None) is not None else None


class Progress:
    """Reports how far some work is, once it has taken two seconds.

    Args:
        say: is called with each line, and with an empty one when the work has ended.
    """

    def __init__(self, say: Callable[[str], object] = show_progress):
        self.say, self._began = say, monotonic()
        self._told = -PAUSE
        """Time of the last line, in seconds since the beginning."""

    @property
    def passed(self) -> float:
        """Seconds since the beginning."""
        return monotonic() - self._began

    def tell(self, line: str | Callable[[], str]) -> None:
        """Report the current piece of work and the time so far, if a line is due; else do nothing.

        Args:
            line: such as ``"point 3 of 5"``, or a function that returns it if it costs something to make.
        """
        passed = self.passed
        # Nothing for two seconds: short work needs no line, and prints none in a notebook.
        if passed > max(PATIENCE, self._told + PAUSE) and not (self._stays and passed < _GROWTH * self._told):
            self._told = passed
            self.say(f"{line if isinstance(line, str) else line()} ({passed:.0f} s)")

    @property
    def _stays(self) -> bool:
        """Whether no line takes the place of the one before."""
        return self.say is show_progress and _notebook() is None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        # The work has ended or failed: a line that was shown says no longer what is going on.
        if self._told >= 0:
            self.say("")
