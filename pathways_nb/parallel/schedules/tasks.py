"""A schedule as arrays: the cell of each action, the dependencies, and the first action that is missing or repeated.

A forward pass needs that of the stage before and, with token slices, that of the slice before on its own stage (whose
keys and values it reads). A gradient by the input needs the forward pass, the gradient of the stage after and, with
token slices, that of the slice after on its own stage (which holds the gradients of those keys and values): TeraPipe
(Li et al. 2021), section 3. A gradient by the weights needs the gradient by the input.

Arrays in place of dictionaries, because the explorer evaluates thousands of actions at every change of a control.
Whether the order of a device agrees with the dependencies is checked in ``checker``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from pathways_nb.errors import ScheduleError
from pathways_nb.parallel.schedules.actions import Action, Cell, Rows, actions_of
from pathways_nb.util.words import counted

F, I, W = range(3)  # noqa: E741 - what the field calls it
"""Parts of the work, as positions on the first axis of ``Tasks.cell``."""
_PARTS = {"F": (F,), "I": (I,), "W": (W,), "B": (I, W)}


_NAMED = 5
"""Number of places that an error names for an action that is repeated."""


class Dependencies(NamedTuple):
    """Dependencies between cells, as columns; cells are numbered device by device."""

    source: np.ndarray
    target: np.ndarray
    stage: np.ndarray
    """The lower of the two stages between which something is sent; -1 if nothing leaves its device."""
    token_slice: np.ndarray


@dataclass(frozen=True, eq=False)
class Tasks:
    """All cells of a schedule, numbered device by device.

    Args:
        cells: all of them.
        first: for each device the number of its first cell, then the number of all cells.
        cell: number of the cell that does each part of the work, by part (F, I, W), direction, stage, microbatch and
            token slice; -1 for microbatches that a direction does not have.
        device: of each stage, by direction and stage.
        directions: letter of each direction.
        count: number of microbatches of each direction.
    """

    cells: tuple[Cell, ...]
    first: np.ndarray
    cell: np.ndarray
    device: np.ndarray
    directions: tuple[str, ...]
    count: tuple[int, ...]

    @classmethod
    def of(cls, rows: Rows) -> Tasks:
        """Return the arrays of a schedule.

        Args:
            rows: for each device its cells.

        Raises:
            ScheduleError: something is done twice or not at all, or a stage stands on several devices.
        """
        for device, row in enumerate(rows):
            if not row:
                raise ScheduleError(f"Device {device} has nothing to do. Give it actions, or leave its line away.")
        cells, actions = zip(*_counted(rows), strict=True)
        directions = tuple(sorted({action.direction for action in actions}))
        at = _places(actions, directions)
        count = tuple(1 + int(at[2][at[0] == number].max()) for number in range(len(directions)))
        stages, slices = int(at[1].max()) + 1, int(at[3].max()) + 1
        parts = sum(2 if action.operation == "B" else 1 for action in actions)
        if parts != 3 * stages * slices * sum(count):  # checked before arrays are made for all that is missing
            _complain(rows, (stages, slices), dict(zip(directions, count, strict=True)))
        where, times = _where(np.array(cells), actions, at)
        if times.max() > 1:
            _complain(rows, (stages, slices), dict(zip(directions, count, strict=True)))
        first, done = np.cumsum([0, *map(len, rows)]), tuple(cell for row in rows for cell in row)
        return cls(done, first, where, _devices(where, first, directions), directions, count)

    @property
    def owner(self) -> np.ndarray:
        """The device of each cell."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    @cached_property
    def counts(self) -> np.ndarray:
        """Number of F, I and W in each cell, shape (3, cells)."""
        return np.stack([np.bincount(part[part >= 0], minlength=len(self.cells)) for part in self.cell])

    def dependencies(self) -> Dependencies:
        """Return all dependencies, each once; a dependency within one cell is left out."""
        found = [_edges(*pair, stage) for pair, stage in self._pairs()]
        source, target, stage, part = (np.concatenate(column) for column in zip(*found, strict=True))
        keep = (source >= 0) & (target >= 0)
        return Dependencies(source[keep], target[keep], stage[keep], part[keep])

    def _pairs(self) -> Iterator[tuple[tuple[np.ndarray, np.ndarray], np.ndarray]]:
        """Yield each kind of dependency: cells of source and target, and the stage that sends something, or -1."""
        forward, gradient, weights = self.cell
        stages = forward.shape[1]
        stay, here = np.full((len(self.directions), stages), -1), np.arange(stages - 1)
        # Neighbouring stages on one device (the fold of a V) hand their result over without a transfer.
        sent = np.where(self.device[:, :-1] != self.device[:, 1:], here, -1)
        yield (forward[:, :-1], forward[:, 1:]), sent
        yield (gradient[:, 1:], gradient[:, :-1]), sent
        yield (forward, gradient), stay
        yield (gradient, np.where(gradient == weights, -1, weights)), stay  # I and W of one B are one cell
        yield (forward[..., :-1], forward[..., 1:]), stay
        yield (gradient[..., 1:], gradient[..., :-1]), stay


def _edges(source: np.ndarray, target: np.ndarray, stage: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return source, target, stage and token slice of one kind of dependency, flat; cells may be -1."""
    parts = np.broadcast_to(np.arange(source.shape[-1]), source.shape)
    stages = np.broadcast_to(stage[..., None, None], source.shape)
    return source.ravel(), target.ravel(), stages.ravel(), parts.ravel()


def _counted(rows: Rows) -> Iterator[tuple[int, Action]]:
    """Yield each action with the number of its cell."""
    for number, cell in enumerate(cell for row in rows for cell in row):
        for action in actions_of(cell):
            yield number, action


def _places(actions: Sequence[Action], directions: tuple[str, ...]) -> np.ndarray:
    """Return direction, stage, microbatch and slice of each action, shape (4, actions)."""
    stage, _, microbatch, part, direction = zip(*actions, strict=True)
    number = {letter: index for index, letter in enumerate(directions)}
    return np.array([[number[one] for one in direction], stage, microbatch, [one or 0 for one in part]])


def _where(cells: np.ndarray, actions: Sequence[Action], at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cell of each part of the work, by part, direction, stage, microbatch and slice, and how many do it."""
    shape = (3, *(1 + at.max(axis=1)))
    where, times = np.full(shape, -1), np.zeros(shape, int)
    letters = np.array([action.operation for action in actions])
    for letter, parts in _PARTS.items():
        mine = letters == letter
        for part in parts:
            where[(part, *at[:, mine])] = cells[mine]
            np.add.at(times, (part, *at[:, mine]), 1)
    return where, times


def _complain(rows: Rows, shape: tuple[int, int], microbatches: dict[str, int]) -> None:
    """Raise the error that names what is done twice, or not at all.

    Slow and in plain Python on purpose: it runs only for a schedule that is known to be wrong.
    """
    done = [part for _, action in _counted(rows) for part in _split(action)]
    _once(rows, done)
    _complete(done, shape, microbatches)


def _once(rows: Rows, done: list[Action]) -> None:
    """Require that each part of the work is done once, where B counts as I and W."""
    if len(set(done)) == len(done):
        return
    places: dict[Action, list[str]] = {}
    for device, row in enumerate(rows):
        for place, cell in enumerate(row, 1):
            for part in (part for action in actions_of(cell) for part in _split(action)):
                places.setdefault(part, []).append(f"device {device}, action {place}")
    part, twice = next((part, found) for part, found in places.items() if len(found) > 1)
    where = "; ".join(twice[:_NAMED]) + ("; …" if len(twice) > _NAMED else "")
    said = f"{_shown(part, done)} is done {len(twice)} times (B is I and W at once): {where}."
    raise ScheduleError(f"{said} Do it once.")


def _complete(done: list[Action], shape: tuple[int, int], microbatches: dict[str, int]) -> None:
    """Require that every stage has all three parts of every microbatch and slice."""
    stages, slices = shape
    if len(done) == 3 * stages * slices * sum(microbatches.values()):
        return  # nothing is repeated, so nothing is missing
    known = set(done)
    for action in _wanted(stages, slices, microbatches, len(done) + 1):
        if action not in known:
            count, operation = microbatches[action.direction], action.operation
            either = "" if operation == "F" else f" (as {operation} or as a part of B)"
            sliced = f" and {slices} token slices" if slices > 1 else ""
            size = f"{counted(stages, 'stage')}, {counted(count, 'microbatch', 'es')}{sliced}"
            said = f"{_shown(action, done)} is missing{either}: with {size}"
            raise ScheduleError(f"{said} every stage does F and B, or F, I and W, of each. Add it.")


def _wanted(stages: int, slices: int, microbatches: dict[str, int], most: int) -> Iterator[Action]:
    """Yield all actions that a complete schedule has, of each size at most ``most``.

    The limit keeps a mistyped number such as ``0F999999999`` from taking for ever: with more than ``most`` wanted
    actions at least one of them is missing.
    """
    for direction, count in microbatches.items():
        for microbatch, part, stage in product(*(range(min(size, most)) for size in (count, slices, stages))):
            for operation in "FIW":
                yield Action(stage, operation, microbatch, part, direction)


def _split(action: Action) -> tuple[Action, ...]:
    """Return the parts that an action does; an action without token slices does slice 0."""
    whole = action._replace(token_slice=action.token_slice or 0)
    return tuple(whole._replace(operation=one) for one in ("IW" if action.operation == "B" else action.operation))


def _shown(part: Action, done: list[Action]) -> Action:
    """Return a part as the schedule writes it: with a token slice only where the schedule has some."""
    return part if any(action.token_slice for action in done) else part._replace(token_slice=None)


def _devices(where: np.ndarray, first: np.ndarray, directions: tuple[str, ...]) -> np.ndarray:
    """Return the device of each stage, by direction.

    Raises:
        ScheduleError: a stage stands on several devices.
    """
    device = np.searchsorted(first, where, side="right") - 1
    found = np.full(device.shape[1:3], -1)
    for direction, stage in np.ndindex(found.shape):
        on = np.unique(device[:, direction, stage][where[:, direction, stage] >= 0])
        if len(on) > 1:
            raise ScheduleError(
                f"Stage {directions[direction]}{stage} stands on devices {' and '.join(map(str, on))}: its weights "
                "are on one device. Move its actions to one line."
            )
        found[direction, stage] = on[0]
    return found
