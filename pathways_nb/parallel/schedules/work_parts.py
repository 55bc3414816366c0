"""The parts of a schedule's work (F, I, W) as columns, and the error for one that is repeated or missing.

Columns, because a schedule may have hundreds of thousands of actions, and one that is refused should be refused about
as fast as it is read. No array here is as large as a mistyped number such as ``0F999999999``: only as the schedule.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from pathways_nb.errors import ScheduleError
from pathways_nb.parallel.schedules.actions import Action, Overlap, Rows, actions_of
from pathways_nb.util.words import counted

F, I, W = range(3)  # noqa: E741 - what the field calls it
"""Parts of the work, as numbers."""
_FIRST_PART = {"F": F, "I": I, "W": W, "B": I}
_NAMED = 5
"""Number of places that an error names for an action that is repeated."""


class WorkParts(NamedTuple):
    """Each F, I and W of a schedule as columns (parts,), device by device in order; B is I and W at once.

    Args:
        directions: letter of each direction.
        cell: number of the cell that does the part.
        part: ``F``, ``I`` or ``W``.
        direction: number of its direction.
        stage: of the model.
        microbatch: in its direction.
        token_slice: 0 where there are none.
    """

    directions: tuple[str, ...]
    cell: np.ndarray
    part: np.ndarray
    direction: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray
    token_slice: np.ndarray

    @classmethod
    def of(cls, rows: Rows) -> WorkParts:
        """Return the parts of all rows."""
        cells = [cell for row in rows for cell in row]
        actions: Iterable[Any] = cells
        numbers = np.arange(len(cells))
        # Most schedules have no pairs: their cells are their actions, and need no further list.
        if Overlap in set(map(type, cells)):
            actions = [action for cell in cells for action in actions_of(cell)]
            numbers = np.repeat(numbers, [len(actions_of(cell)) for cell in cells])
        stages, operations, microbatches, slices, letters = ([one[at] for one in actions] for at in range(5))
        directions = tuple(sorted(set(letters)))
        index = {letter: number for number, letter in enumerate(directions)}
        columns = (
            numbers,
            [_FIRST_PART[one] for one in operations],
            [index[letter] for letter in letters] if directions != ("",) else np.zeros(len(letters), int),
            stages,
            microbatches,
            [one or 0 for one in slices] if any(slices) else np.zeros(len(slices), int),
        )
        # (parts,) the action of each part: B stands for two, I and then W.
        action = np.repeat(np.arange(len(operations)), 1 + np.array([one == "B" for one in operations]))
        cell, part, *where = (np.asarray(column)[action] for column in columns)
        part[1:][action[1:] == action[:-1]] = W  # the second part of B
        return cls(directions, cell, part, *where)

    @property
    def microbatches(self) -> tuple[int, ...]:
        """Number of microbatches of each direction, as their numbers say."""
        return tuple(1 + int(self.microbatch[self.direction == one].max()) for one in range(len(self.directions)))

    @property
    def shape(self) -> tuple[int, int]:
        """Number of stages and of token slices."""
        return 1 + int(self.stage.max()), 1 + int(self.token_slice.max())

    @property
    def wanted(self) -> int:
        """Number of parts that a complete schedule of this size has."""
        stages, slices = self.shape
        return 3 * stages * slices * sum(self.microbatches)


def require_each_once(rows: Rows, parts: WorkParts) -> None:
    """Require that every part of the work is done, and done once.

    Raises:
        ScheduleError: the first part that is repeated, else the first that is missing.
    """
    same = _numbered(parts)
    repeated = np.flatnonzero(np.bincount(same)[same] > 1)
    if len(repeated):
        _refuse_repeated(rows, parts, int(repeated[0]), np.flatnonzero(same == same[repeated[0]]))
    if len(same) != parts.wanted:
        _refuse_missing(parts)


def _numbered(parts: WorkParts) -> np.ndarray:
    """Return a number for each part, which is that of another one if both are the same work."""
    number, count = parts.part, 3
    # Digits of a number: equal numbers are equal work.
    for column in (parts.direction, parts.stage, parts.microbatch, parts.token_slice):
        size = 1 + int(column.max())
        if count * size >= 2**63:  # ranks instead of values, which do not exceed the number of parts
            (number, count), (column, size) = _ranked(number), _ranked(column)
        number, count = number * size + column, count * size
    return _ranked(number)[0]


def _ranked(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the rank of each value among the different ones, and how many those are."""
    different, ranks = np.unique(values, return_inverse=True)
    return ranks, len(different)


def _refuse_repeated(rows: Rows, parts: WorkParts, first: int, all_of_it: np.ndarray) -> None:
    starts = np.cumsum([0, *map(len, rows)])
    cells = parts.cell[all_of_it[:_NAMED]]
    devices = np.searchsorted(starts, cells, side="right") - 1
    places = [
        f"device {device}, action {cell - starts[device] + 1}" for device, cell in zip(devices, cells, strict=True)
    ]
    where = "; ".join(places) + ("; …" if len(all_of_it) > _NAMED else "")
    direction, microbatch, part, stage = (
        int(column[first]) for column in (parts.direction, parts.microbatch, parts.token_slice, parts.stage)
    )
    action = _action_of_part(parts, direction, microbatch, part, stage, int(parts.part[first]))
    raise ScheduleError(f"{action} is done {len(all_of_it)} times (B is I and W at once): {where}. Do it once.")


def _refuse_missing(parts: WorkParts) -> None:
    """Raise the error of the first missing part: by direction, microbatch, token slice, stage, and F, I, W."""
    (stages, slices), most = parts.shape, len(parts.cell) + 1
    for direction, count in enumerate(parts.microbatches):
        # With more than ``most`` wanted parts at least one of the first ``most`` is missing, so no size need be larger.
        sizes = (min(count, most), min(slices, most), min(stages, most), 3)
        columns = (parts.microbatch, parts.token_slice, parts.stage, parts.part)
        in_direction = parts.direction == direction
        for column, size in zip(columns, sizes, strict=True):
            in_direction &= column < size
        place = _places([column[in_direction] for column in columns], sizes, most)
        wanted = min(most, sizes[0] * sizes[1] * sizes[2] * 3)
        missing = np.flatnonzero(np.bincount(place, minlength=wanted)[:wanted] == 0)
        if len(missing):
            microbatch, part, stage, operation = _split(int(missing[0]), sizes)
            action = _action_of_part(parts, direction, microbatch, part, stage, operation)
            either = "" if operation == F else f" (as {'FIW'[operation]} or as a part of B)"
            sliced = f" and {slices} token slices" if slices > 1 else ""
            whole = f"{counted(stages, 'stage')}, {counted(count, 'microbatch', 'es')}{sliced}"
            raise ScheduleError(
                f"{action} is missing{either}: with {whole} every stage does F and B, or F, I and W, of each. Add it."
            )


def _places(columns: list[np.ndarray], sizes: tuple[int, ...], most: int) -> np.ndarray:
    """Return the places of parts in the order of columns, of those only that come before ``most``."""
    place = np.zeros(len(columns[0]), int)
    for column, size in zip(columns, sizes, strict=True):
        # Cut off before each step: no product leaves the 64 bits, and what is beyond stays beyond.
        place = np.minimum(place, most) * size + column
    return place[place < most]


def _split(place: int, sizes: tuple[int, ...]) -> list[int]:
    """Return the numbers in each column of the part at a place."""
    # In Python's integers: the sizes together may exceed 64 bits.
    numbers: list[int] = []
    for size in reversed(sizes):
        place, number = divmod(place, size)
        numbers.insert(0, number)
    return numbers


def _action_of_part(
    parts: WorkParts, direction: int, microbatch: int, token_slice: int, stage: int, part: int
) -> Action:
    """Return a part as the schedule writes it: with a token slice only where the schedule has some."""
    sliced = token_slice if parts.token_slice.any() else None
    return Action(stage, "FIW"[part], microbatch, sliced, parts.directions[direction])
