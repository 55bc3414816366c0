"""Questions of notebook 08: token slices, their number and their lengths.

The answers are closed forms, or come from ``parallel.terapipe``, which the notebook uses. A pipeline of K stages takes
Σ t + (K−1) max t for slices that take t on a stage (TeraPipe, equation 5).
"""

from __future__ import annotations

import math
from typing import Any

from pathways_nb.course.question import Question, is_near
from pathways_nb.parallel.schedules.schedule import schedule
from pathways_nb.parallel.terapipe.slice_planner import plan

_DEVICES, _SLICES = 4, 16
"""Devices and slices of the first question."""
_STAGES, _OVERHEAD = 17, 0.01
"""Stages of the second question, and seconds that each slice costs in addition to its share of one second."""
_LENGTH = 512
"""Tokens of the sequence of the third question."""


def _why_bubble(answer: Any, expected: float) -> str:
    if is_near(answer, (_DEVICES - 1) / _SLICES):
        return "That is idle time over working time; the bubble is a part of all time, idle or not."
    if is_near(answer, (_DEVICES - 1) / (_DEVICES + _SLICES)):
        return "Nearly: how many turns does the last device wait for its first slice? And how many does the whole take?"
    if is_near(answer, 1 - 1 / _DEVICES):
        return "That is the whole sequence in one piece, when all devices but one wait."
    if is_near(answer, 1 - expected):
        return "That is the part of the time in which they work."
    return "Slices take the place of microbatches in (p−1)/(m+p−1)."


def _why_count(answer: Any, expected: float) -> str:
    if is_near(answer, (_STAGES - 1) / _OVERHEAD):
        return "Take the square root: both terms that depend on k are equal at the minimum."
    if is_near(answer, math.sqrt(1 / _OVERHEAD)):
        return "That is for two stages; each further stage waits for one more slice."
    if is_near(answer, math.sqrt(_STAGES / _OVERHEAD)):
        return "Nearly: the first stage waits for nobody, so K−1 counts."
    return "T(k) = k·o + 1 + (K−1)(o + 1/k), with o = 0.01 and K = 17. For which k is k·o + (K−1)/k least?"


def _longest() -> int:
    """Return the position, from 1, of the longest slice where only attention takes time."""
    found = plan(_attention, length=_LENGTH, stages=8, granularity=16).token_slices
    return 1 + found.index(max(found))


def _attention(sequences: Any, tokens: Any, context: Any) -> Any:
    """Return the seconds of a slice of which only attention and a millisecond for its launch take time."""
    return 1e-3 + 2e-7 * sequences * tokens * (tokens + 2 * context)


def _why_longest(answer: Any, expected: int) -> str:
    if answer == 0:
        return "Count from one."
    return "A token of a later slice attends to more tokens. Which slice has the fewest tokens before it?"


QUESTIONS = {
    "08.bubble": Question(lambda: schedule("terapipe", _DEVICES, 1, None, _SLICES).bubble, _why_bubble),
    # The k that minimises k·o + 1 + (K−1)(o + 1/k): where its derivative by k, o − (K−1)/k², is zero.
    "08.count": Question(lambda: math.sqrt((_STAGES - 1) / _OVERHEAD), _why_count),
    "08.longest": Question(_longest, _why_longest),
}
