"""The notation of schedules: actions, overlapped pairs, and the parser of their text form.

An action is a stage, what is done with it, and on which microbatch and slice of its tokens: ``2F0`` is the forward pass
of microbatch 0 through stage 2, ``2F0.1`` that of its token slice 1. ``I`` is the gradient by the input, ``W`` that by
the weights, ``B`` both at once. Where two pipelines run in opposite directions, as in DualPipe, each has its letter:
``b3F0``. An overlapped pair, ``(0F3;3B1)OVERLAP_F_B``, is one cell of a device's list: both results are available at
its end. This is the notation of PyTorch's pipeline schedules, with token slices and directions added.

The parser knows nothing of dependencies: ``tasks`` and ``checker`` find out whether a schedule can run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from pathways_nb.errors import UsageError
from pathways_nb.util.collecting import uncollected
from pathways_nb.util.json_text import shortened

OPERATIONS = "FIWB"
"""Forward; gradient by the input; gradient by the weights; both gradients at once."""


class Action(NamedTuple):
    """One operation on one microbatch by one stage.

    Args:
        stage: of the model, from 0.
        operation: one of ``OPERATIONS``.
        microbatch: from 0, in its direction.
        token_slice: which part of the microbatch's tokens, from 0; None if they are not sliced.
        direction: a letter for each pipeline, where there are several; else empty.
    """

    stage: int
    operation: str
    microbatch: int
    token_slice: int | None = None
    direction: str = ""

    def __str__(self) -> str:
        part = "" if self.token_slice is None else f".{self.token_slice}"
        return f"{self.direction}{self.stage}{self.operation}{self.microbatch}{part}"


class Overlap(NamedTuple):
    """A forward and a backward pass that a device carries out together, as one cell of its list."""

    forward: Action
    backward: Action

    def __str__(self) -> str:
        return f"({self.forward};{self.backward})OVERLAP_F_B"


Cell = Action | Overlap
Rows = Sequence[Sequence[Cell]]
"""For each device its cells, in order of execution."""

# re.ASCII: without it \d would match the digits of all scripts.
_ACTION = re.compile(rf"([a-z]?)(\d+)([{OPERATIONS}])(\d+)(?:\.(\d+))?", re.ASCII)
_DIGITS = 18
"""Most digits of a stage, a microbatch or a slice number: arrays hold them in 64 bits."""
_ONLY = re.compile(
    rf"(?<![^\s,])([a-z]?)(\d{{1,{_DIGITS}}})([{OPERATIONS}])(\d{{1,{_DIGITS}}})(?:\.(\d{{1,{_DIGITS}}}))?(?![^\s,])",
    re.ASCII,
)
"""An action between separators: for rows of nothing else, which are read in one go."""
_PAIR = "(0F3;3B1)OVERLAP_F_B"
_OVERLAP = re.compile(r"\(([^;()]+);([^;()]+)\)OVERLAP_F_B")


def actions_of(cell: Cell) -> tuple[Action, ...]:
    """Return the actions of a cell: one, or the two of an overlapped pair."""
    return (cell.forward, cell.backward) if isinstance(cell, Overlap) else (cell,)


def parse_cell(text: str, where: str) -> Cell:
    """Return the cell that a text describes.

    Args:
        text: such as ``"0F0"`` or ``"(0F3;3B1)OVERLAP_F_B"``.
        where: position of the text in its schedule, for the error.

    Raises:
        UsageError: the text is no cell.
    """
    pair = _OVERLAP.fullmatch(text)
    if not pair:
        return parse_action(text, where)
    forward, backward = (parse_action(one, where) for one in pair.groups())
    if forward.operation != "F" or backward.operation not in "IB":
        raise UsageError(
            f"{where}: {shortened(text)} overlaps no forward with a backward pass. Write it as in {_PAIR}."
        )
    return Overlap(forward, backward)


def parse_action(text: str, where: str) -> Action:
    """Return the action that a text describes.

    Args:
        text: such as ``"0F0"`` or ``"b3I2.1"``.
        where: position of the text in its schedule, for the error.

    Raises:
        UsageError: the text is no action, or one of its numbers is too long.
    """
    found = _ACTION.fullmatch(text)
    if not found:
        raise UsageError(
            f"{where}: {shortened(text)} is no action. Write stage, operation and microbatch, as in 0F0 (F forward, I "
            f"gradient by the input, W by the weights, B both at once), and .k for token slice k, as in 0F0.1."
        )
    direction, stage, operation, microbatch, part = found.groups()
    # A number of any length would be a valid int, and an error of NumPy only later.
    if longest := max((one for one in (stage, microbatch, part or "") if len(one) > _DIGITS), key=len, default=""):
        raise UsageError(
            f"{where}: {shortened(text)} has a number of {len(longest)} digits. Stages, microbatches and token slices "
            f"are counted from 0, and have at most {_DIGITS} digits."
        )
    return Action(int(stage), operation, int(microbatch), None if part is None else int(part), direction)


def parse_rows(text: str) -> list[list[Cell]]:
    """Return the cells of each device, one line of the text for each; spaces or commas separate cells.

    Raises:
        UsageError: the text is empty, or has something that is no action: its line and place are named.
    """
    # Hundreds of thousands of new tuples would start the garbage collector again and again, for nothing.
    with uncollected():
        rows = [parse_row(line, f"line {number}") for number, line in enumerate(text.strip().splitlines(), 1)]
    if not any(rows):
        raise UsageError("No schedule: write a line for each device with what it does in order, as in 0F0 0F1 0B0 0B1.")
    return rows


def parse_row(text: str, where: str) -> list[Cell]:
    """Return the cells of one device.

    Args:
        text: cells between spaces or commas.
        where: position of the line in its schedule, for the error.

    Raises:
        UsageError: something that is no action: its place after ``where`` is named.
    """
    cells = text.replace(",", " ").split()
    # One search for the whole row is faster than one for each cell. It skips what is no plain action, so the counts
    # differ if anything else is in the row; then each cell is parsed, and the one that is wrong named.
    plain = _ONLY.findall(text)
    if len(plain) == len(cells):
        return [
            Action(int(stage), operation, int(microbatch), int(part) if part else None, direction)
            for direction, stage, operation, microbatch, part in plain
        ]
    return [parse_cell(cell, f"{where}, action {place}") for place, cell in enumerate(cells, 1)]
