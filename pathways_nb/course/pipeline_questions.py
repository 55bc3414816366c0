"""Questions of notebook 07: bubbles and peaks of pipeline schedules.

Every pass (F, I or W of one microbatch on one device) takes one unit of time, so the answers are whole numbers or
closed forms. They are computed by ``parallel.schedules``, the code that draws the schedules, for p devices and m
microbatches; the bubble of 1F1B is (p−1)/(m+p−1).
"""

from __future__ import annotations

from typing import Any

from pathways_nb.course.question import Question, is_near
from pathways_nb.errors import UsageError
from pathways_nb.parallel.schedules.registry import schedules
from pathways_nb.parallel.schedules.schedule import Schedule, schedule

_DEVICES, _MICROBATCHES, _MORE = 4, 8, 64
"""Devices and microbatches of most questions, and the microbatches of the one about the peak."""
_WIDE, _MANY, _CAPACITY = 8, 32, 5.0
"""Devices and microbatches of the picture of all schedules, and the microbatches of activations that fit on a device.
"""
_PART = 20
"""The bubble of the third question is one part in this many."""
_SLOW = 2
"""How many times as long the last stage takes as the others."""
_PASSES = 3
"""Passes of a microbatch on a device: F, I and W."""


def _small(name: str) -> Schedule:
    """Return the schedule of that name at the size of most questions."""
    return schedule(name, _DEVICES, _MICROBATCHES)


def _why_bubble(answer: Any, expected: float) -> str:
    idle = _small("1f1b").makespan() - _PASSES * _MICROBATCHES
    if is_near(answer, idle / (_PASSES * _MICROBATCHES)):
        return "That is idle time over working time, as some papers define it; here it is over all time, idle or not."
    if is_near(answer, idle):
        return "That is how long a device idles. What fraction is it of the time from the first to the last action?"
    if is_near(answer, 100 * expected):
        return "Write it as a fraction, between 0 and 1."
    if is_near(answer, 1 - expected):
        return "That is the fraction of the time in which they work."
    if is_near(answer, (_DEVICES - 1) / (_DEVICES + _MICROBATCHES)):
        return (
            "Nearly: how many turns does the last device wait for its first microbatch? "
            "And how many does the whole take?"
        )
    if is_near(answer, 1 - 1 / _DEVICES):
        return "That is without microbatches, when all devices but one wait."
    return "How many turns before the last device begins? Each device idles for that many; how many are there in all?"


def _why_peak(answer: Any, expected: float) -> str:
    if is_near(answer, _MORE):
        return "That is GPipe, which keeps all of them until the first backward pass. When does 1F1B begin its own?"
    if is_near(answer, _small("1f1b").peak * _MORE / _MICROBATCHES):
        return "It does not grow with the number of microbatches: look at the curve of device 0 in the picture."
    if is_near(answer, expected - 1):
        return "That many go ahead; then comes one more, before the first gradient is back."
    if is_near(answer, 1):
        return "That is the last device, which can begin its backward pass at once."
    return "Device 0 goes ahead until the first microbatch has gone to the last device and come back: how many is that?"


def _why_fewest(answer: Any, expected: int) -> str:
    if answer == _PART * (_WIDE - 1):
        return "That takes idle time as a part of working time; the bubble is a part of all time, so fewer will do."
    if answer == expected - 1:
        return "Nearly; with that many the bubble is still a little too large."
    if answer < expected:
        return "With so few the bubble is too large. Solve (p−1)/(m+p−1) for m."
    return "That is enough, and more than is needed. Solve (p−1)/(m+p−1) for m."


def _why_zero(answer: Any, expected: float) -> str:
    work = _PASSES * _MICROBATCHES
    if is_near(answer, work):
        return "That is the work of each device, which it does without a pause. But do they all begin at the same time?"
    if is_near(answer, _small("1f1b").makespan()):
        return "That is 1F1B, whose devices also wait between their first and their last action."
    if is_near(answer, work + 2 * (_DEVICES - 1)):
        return "The last device begins late, and also ends last: its delay counts once."
    return "Each device works without a pause. How long is that, and when does the last of them begin?"


def _slow() -> float:
    """Return the makespan of 1F1B with a last stage that takes ``_SLOW`` times as long."""
    # All three passes of the last stage are slow, as those of a stage with more layers.
    times = [1] * (_DEVICES - 1) + [_SLOW]
    return _small("1f1b").makespan(F=times, I=times, W=times)


def _why_slow(answer: Any, expected: float) -> str:
    even = _small("1f1b").makespan()
    slow = _SLOW * _PASSES * _MICROBATCHES
    if is_near(answer, slow):
        return "That is the last device alone. Before it can begin and after it has ended, others work."
    if is_near(answer, even + (_SLOW - 1) * _PASSES):
        return "That lets one microbatch pass the slow stage. All of them have to, one after another."
    if is_near(answer, _SLOW * even):
        return "That is for four slow stages. What do the other three add to the time of the slow one?"
    if is_near(answer, even * (_DEVICES - 1 + _SLOW) / _DEVICES):
        return "That goes by the average of the stages. But each microbatch has to pass the slow one."
    return "The slow device does all its work without a pause; what comes before it begins, and after it has ended?"


def _fitting() -> str:
    """Return the name of the schedule without token slices that fits with the smallest bubble."""
    # All that are registered, the reader's own included: the best one is that of the reader's session.
    found = [
        made for made in map(_wide, schedules()) if made and made.size.token_slices == 1 and made.peak <= _CAPACITY
    ]
    return min(found, key=lambda made: made.bubble).name


def _wide(name: str) -> Schedule | None:
    """Return the schedule of that name at the size of the picture; ``None`` if the reader's own has no such size."""
    try:
        return schedule(name, _WIDE, _MANY)
    except UsageError:
        return None


def _why_fitting(answer: Any, expected: str) -> str:
    # The answer may be anything a reader types, also no text.
    made = _wide(answer) if answer in schedules() else None
    if made is None:
        return f"Write the name of a schedule, in quotes, one of {', '.join(map(repr, schedules()[:3]))}, ..."
    if made.size.token_slices > 1:
        return "It fits, but it cuts sequences, which only helps if they are long. Which other one fits best?"
    if made.peak > _CAPACITY:
        return f"It needs room for {made.peak:g} microbatches, and there is room for {_CAPACITY:g}."
    return f"It fits, with a bubble of {made.bubble:.1%}; another that fits has a smaller one. Look in the picture."


QUESTIONS = {
    "07.bubble": Question(lambda: _small("1f1b").bubble, _why_bubble),
    "07.peak": Question(lambda: schedule("1f1b", _DEVICES, _MORE).peak, _why_peak),
    # (p−1)/(m+p−1) is one part in n for m = (n−1)(p−1).
    "07.fewest": Question(lambda: (_PART - 1) * (_WIDE - 1), _why_fewest),
    "07.zero": Question(lambda: _small("zb-h2").makespan(), _why_zero),
    "07.slow": Question(_slow, _why_slow),
    "07.room": Question(_fitting, _why_fitting),
}
