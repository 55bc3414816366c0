"""The pieces that the rows of schedules are made of: passes in turn, weights later, the two stages of a device.

A generator says in which order a device takes its forward and its backward passes, and how many of the first it runs
ahead; these pieces do the rest. They know nothing of dependencies: ``check`` finds out whether the order can run.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import NoReturn

from pathways_nb.errors import UsageError
from pathways_nb.parallel.schedules.actions import Action


def alternating(forwards: list[Action], backwards: list[Action], ahead: int) -> list[Action]:
    """``ahead`` forward passes, then forward and backward in turn, then what is left of the backward passes."""
    steady = [action for pair in zip(forwards[ahead:], backwards, strict=False) for action in pair]
    return [*forwards[:ahead], *steady, *backwards[max(0, len(forwards) - ahead) :]]


def mirrored(forwards: list[Action]) -> list[Action]:
    """All forward passes, then the backward passes in exactly the reverse order."""
    return forwards + [Action(stage, "B", number, part) for stage, _, number, part, _ in reversed(forwards)]


def with_weights(row: Iterable[Action], delay: int = 0) -> list[Action]:
    """Each gradient by the weights (W), ``delay`` gradients by the input (I) after its own one; the last at the end."""
    filled: list[Action] = []
    waiting: deque[Action] = deque()
    for action in row:
        filled.append(action)
        if action.operation == "I":
            waiting.append(Action(action.stage, "W", action.microbatch, action.token_slice, action.direction))
            if len(waiting) > delay:
                filled.append(waiting.popleft())
    return filled + list(waiting)


class Side:
    """One of the stages of a device: ``side("F")`` is its next forward pass, ``side("B")`` its next backward pass.

    Microbatches follow by counting; B, which is I and W at once, counts for both.

    Args:
        stage: of the model. direction: of its pipeline, where there are two.
    """

    def __init__(self, stage: int, direction: str = "") -> None:
        self.stage, self.direction = stage, direction
        self._done: Counter[str] = Counter()

    def __call__(self, operation: str) -> Action:
        """The next action of this operation, one of ``OPERATIONS``."""
        counted = "IW" if operation == "B" else operation
        number = self._done[counted[0]]
        for each in counted:
            self._done[each] += 1
        return Action(self.stage, operation, number, None, self.direction)


def require_two_chunks(name: str, chunks: int) -> None:
    """That of a V, whose two arms each device holds.

    Raises:
        UsageError: another number of chunks.
    """
    if chunks != 2:
        raise UsageError(
            f"schedule {name!r}: chunks={chunks}, but each device holds the two arms of a V. Take chunks=2."
        )


def refuse(name: str, size: str, value: int, rule: str, holds: Callable[[int], bool]) -> NoReturn:
    """Say that a schedule has no such size, and the nearest that it has.

    Args:
        name: of the schedule. size, value: the one that does not fit. rule: what it breaks. holds: whether one fits.

    Raises:
        UsageError: always.
    """
    near = next(good for step in count(1) for good in (value - step, value + step) if good > 0 and holds(good))
    raise UsageError(f"schedule {name!r}: {size}={value} {rule}. The nearest that fits is {size}={near}.")
