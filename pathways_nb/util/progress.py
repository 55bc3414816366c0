"""Progress: whatever takes longer than two seconds says what it is doing, at most once a second.

One object for all that may take long: compiling, calibrating, a sweep. It keeps no thread; who works calls ``tell``
between two things that it does. A line is plain text, for a terminal and a notebook alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic

PATIENCE, PAUSE = 2.0, 1.0
"""Seconds before the first line of progress, and between two."""


def to_standard_error(line: str) -> None:
    """Write a line where it is seen at once, and is in nobody's output."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class Progress:
    """Tells a person how far something is, once it has taken two seconds.

    Args:
        say: told each line; by default it goes to standard error.
    """

    def __init__(self, say: Callable[[str], object] = to_standard_error):
        self.say, self._began = say, monotonic()
        self._told = -PAUSE
        """Seconds after the beginning."""

    @property
    def passed(self) -> float:
        """Seconds since it began."""
        return monotonic() - self._began

    def tell(self, line: str | Callable[[], str]) -> None:
        """Say what is under way now, and for how long all of it has been, if it is time to; else do nothing.

        Args:
            line: such as ``"point 3 of 5"``, or what makes it where that costs something.
        """
        passed = self.passed
        if passed > max(PATIENCE, self._told + PAUSE):
            self._told = passed
            self.say(f"{line if isinstance(line, str) else line()} ({passed:.0f} s)")
