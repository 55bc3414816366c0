"""Questions of notebook 04: the memory peak of a program, and how many programs fit at a time.

The second answer is measured: it takes the highest level in the reader's own record.
"""

from __future__ import annotations

from typing import Any

from pathways_nb.course.question import NotYetError, Question, is_near
from pathways_nb.results.opened_runs import runs

_VALUES, _PART = 4, 1.0
"""Number of stages of the program in the question, and megabytes of each of its values on a device."""
_HAVE = 25e6
"""Bytes of memory of a device in the second question."""


def _why_peak(answer: Any, expected: float) -> str:
    if is_near(answer, _PART * (1 + _VALUES)):
        return "That keeps every value to the end. Which of them does no later stage read?"
    if is_near(answer, _PART * 2):
        return "Those are a stage's input and output. The argument, which its caller still holds, is missing."
    if is_near(answer, 4 * expected):
        return "That is on all four devices together; each has a quarter of every array."
    return "Take the third stage: what does it read, what does it make, and what is still held from the beginning?"


def _together() -> int:
    """Return how many programs of the recorded peak fit into ``_HAVE`` bytes.

    Raises:
        NotYetError: the run is missing.
    """
    if "pressure" not in runs:
        raise NotYetError("run the cell that begins with %%pathways and has --run pressure first: the answer is in it.")
    # What a client held: the run had room for one program at a time.
    clients = (held.levels[:, [name != "" for name in held.names]] for held in runs["pressure"].memory())
    # Rounded down: a program begins only when all of it fits.
    return int(_HAVE // max(int(levels.max(initial=0)) for levels in clients))


def _why_together(answer: Any, expected: int) -> str:
    if answer == expected + 1:
        return "The last program would not fit whole, and a program begins only when all of it fits."
    return "Divide the memory of a device by the peak of one program, and round down."


QUESTIONS = {
    # The argument and, while a later stage runs, its input and its output.
    "04.peak": Question(lambda: _PART * (1 + min(_VALUES, 2)), _why_peak),
    "04.together": Question(_together, _why_together),
}
