"""Building pieces for the rows of schedules: passes in turn, delayed weight gradients, the two stages of a device.

A generator says in which order a device takes its forward and its backward passes, and how many of the first it runs
ahead; these pieces do the rest. They know nothing of dependencies, so that a generator stays a few lines of the paper's
own rule: ``Schedule.check`` finds out whether the order can run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import NoReturn

from pathways_nb.errors import UsageError
from pathways_nb.parallel.schedules.actions import Action


def alternating(forwards: list[Action], backwards: list[Action], ahead: int) -> list[Action]:
    """Return ``ahead`` forward passes, then forward and backward in turn, then the rest of the backward passes."""
    # zip ends with the forward passes; the backward passes that are left follow.
    steady = [action for pair in zip(forwards[ahead:], backwards, strict=False) for action in pair]
    return [*forwards[:ahead], *steady, *backwards[max(0, len(forwards) - ahead) :]]


def mirrored(forwards: list[Action]) -> list[Action]:
    """Return all forward passes, then the backward passes in exactly the reverse order."""
    return forwards + [Action(stage, "B", number, part) for stage, _, number, part, _ in reversed(forwards)]


def with_weights(row: Iterable[Action], delay: int = 0) -> list[Action]:
    """Return a row with the gradient by the weights (W) of each gradient by the input (I) added.

    Args:
        row: actions; only I gets a W, since B contains it.
        delay: number of later I between an I and its W; what is left over at the end follows there.
    """
    filled: list[Action] = []
    waiting: deque[Action] = deque()
    for action in row:
        filled.append(action)
        if action.operation == "I":
            waiting.append(Action(action.stage, "W", action.microbatch, action.token_slice, action.direction))
            # First in, first out: microbatches stay in order, and none waits longer than ``delay``.
            if len(waiting) > delay:
                filled.append(waiting.popleft())
    return filled + list(waiting)


class Side:
    """One stage of a device: ``side("F")`` is its next forward pass, ``side("B")`` its next backward pass.

    Microbatches are numbered by counting calls; B, which is I and W at once, counts for both.

    Args:
        stage: of the model.
        direction: letter of its pipeline, where there are two.
    """

    def __init__(self, stage: int, direction: str = "") -> None:
        self.stage, self.direction = stage, direction
        backward = count()  # I and B go on from the same number
        self._weights = count()
        self._numbers = {"F": count(), "I": backward, "B": backward, "W": self._weights}

    def __call__(self, operation: str) -> Action:
        """Return the next action of an operation, one of ``OPERATIONS``."""
        if operation == "B":
            next(self._weights)
        return Action(self.stage, operation, next(self._numbers[operation]), None, self.direction)


def require_two_chunks(name: str, chunks: int) -> None:
    """Require the number of chunks of a V, whose two arms each device holds.

    Args:
        name: of the schedule.
        chunks: number of chunks asked for.

    Raises:
        UsageError: another number of chunks than 2.
    """
    if chunks != 2:
        raise UsageError(f"schedule {name!r}: chunks={chunks}, but each device has two arms of a V. Take chunks=2.")


def refuse(name: str, size: str, value: int, rule: str, holds: Callable[[int], bool]) -> NoReturn:
    """Raise the error of a schedule that has no such size, with the nearest size that it has.

    Args:
        name: of the schedule.
        size: name of the size that does not fit.
        value: its value.
        rule: the rule that it breaks, as the rest of a sentence.
        holds: whether a value fits.

    Raises:
        UsageError: always.
    """
    # The smaller of two equally near ones: it needs no more devices or memory than were asked for.
    near = next(good for step in count(1) for good in (value - step, value + step) if good > 0 and holds(good))
    raise UsageError(f"schedule {name!r}: {size}={value} {rule}. The nearest that fits is {size}={near}.")
