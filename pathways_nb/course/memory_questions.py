"""Questions of notebook 04: peaks, and how many programs fit."""

from __future__ import annotations

import math
from typing import Any

from pathways_nb.course.question import TOLERANCE, NotYetError, Question
from pathways_nb.results.run import runs

_VALUES, _PART = 4, 1.0
"""Stages of the program in the question, and megabytes of each of its values on a device."""
_HAVE = 25e6
"""Bytes of a device in the second question."""


def _peak() -> float:
    """The argument and, while a stage after the first runs, what it reads and what it makes."""
    return _PART * (1 + min(_VALUES, 2))


def _why_peak(answer: Any, expected: float) -> str:
    if math.isclose(answer, _PART * (1 + _VALUES), rel_tol=TOLERANCE):
        return "That keeps every value to the end. Which of them does nobody read any more?"
    if math.isclose(answer, _PART * 2, rel_tol=TOLERANCE):
        return "What a stage reads and what it makes, yes; and the argument, which its caller still holds."
    if math.isclose(answer, 4 * expected, rel_tol=TOLERANCE):
        return "That is on all four devices together; each has a quarter of every array."
    return "Take the third stage: what does it read, what does it make, and what is still held from the beginning?"


def _together() -> int:
    if "pressure" not in runs:
        raise NotYetError("run the cell that begins with %%pathways and has --run pressure first: the answer is in it.")
    levels = runs["pressure"].events.of_kind("memory")
    one = levels["bytes"][~levels.is_("client", "")].max()  # there was room for one program at a time
    return int(_HAVE // one)


def _why_together(answer: Any, expected: int) -> str:
    if answer == expected + 1:
        return "The last of them would not fit whole, and a program begins only when all of it does."
    return "Divide what a device has by the peak of one, and leave out what is no whole program."


QUESTIONS = {
    "04.peak": Question(_peak, _why_peak),
    "04.together": Question(_together, _why_together),
}
