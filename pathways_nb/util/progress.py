"""Progress of long work: nothing for two seconds, then a line at most once a second.

One class for all that may take long: compiling, calibrating, a sweep. It has no thread; the code that works calls
``tell`` between two pieces of work, so a line is always true when it is written. A line is plain text, for a terminal
and a notebook alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic

PATIENCE, PAUSE = 2.0, 1.0
"""Seconds before the first line of progress (``PATIENCE``), and between two lines (``PAUSE``)."""


def to_standard_error(line: str) -> None:
    """Write a line to standard error and flush it: seen at once, and never mixed into a program's output."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class Progress:
    """Reports how far some work is, once it has taken two seconds.

    Args:
        say: is called with each line; by default lines go to standard error.
    """

    def __init__(self, say: Callable[[str], object] = to_standard_error):
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
        if passed > max(PATIENCE, self._told + PAUSE):
            self._told = passed
            self.say(f"{line if isinstance(line, str) else line()} ({passed:.0f} s)")
