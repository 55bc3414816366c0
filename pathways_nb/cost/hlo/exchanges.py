"""What collectives of a compiled module exchange: their kind, their bytes, and who takes part.

Between slices of TPUs XLA writes no collective, but a ``send`` and a ``recv`` of each chip's part, with the collective
beside them as attributes: hosts carry it out over their network (DCN). Chips have numbers of their own there, 100,000
for each slice from 1 on and one for each chip in the order of z, y, x; where they lie in the program's mesh is not in
the text (``cost.launch.op_seconds.LaunchPlace``).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from pathways_nb.cost.collectives.groups import groups_of
from pathways_nb.cost.collectives.kinds import BY_NAME, BY_OPCODE
from pathways_nb.cost.hlo.hlo_text import HloComputation, HloInstruction, HloShape

SLICE_NUMBERS = 100_000
"""Numbers of chips from one slice to the next in transfers between slices."""
_KIND = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_TARGET = re.compile(r"_xla_megascale_target=(\"[^\"]*\"|\{(?:\{[^}]*\},?)*\})")
_RENAMED = {"one-to-one": "permute"}
"""Kinds of collectives by the compiler's words for them, where those are others."""


class HloExchange(NamedTuple):
    """A collective of a schedule.

    Args:
        kind: the name of its kind in ``cost.collectives.kinds``.
        bytes: on one device: of the full result, or of the operand, as ``CollectiveKind.counts_result`` says.
        groups: positions of the participants in the program's mesh, one group a row; of a permutation its pairs.
            Between slices the compiler's numbers of the chips (``LaunchPlace.located``).
        dtype: type of most of its bytes.
        arrays: number of arrays that it exchanges at once.
    """

    kind: str
    bytes: float
    groups: np.ndarray
    dtype: str
    arrays: int

    @property
    def size(self) -> int:
        """Number of participants of a group; of a permutation 2, or 1 where each device sends to itself."""
        return int(self.groups.shape[1])


def exchange_of(computation: HloComputation, collective: HloInstruction, devices: int) -> HloExchange:
    """Return what a collective exchanges.

    Args:
        computation: that it is in.
        collective: the instruction, or its start.
        devices: number of devices of the program.
    """
    kind = BY_OPCODE[collective.opcode.removesuffix("-start")]
    if kind.counts_result:
        # The type of an asynchronous start has its operands first.
        shapes: tuple[HloShape, ...] = collective.shapes[-len(collective.operands) :]
    else:
        names = collective.operands
        shapes = tuple(shape for name in names for shape in computation.instructions[name].shapes)
    # A TPU's reduce-scatter is an all-reduce that is fused with the slice of its own part.
    name = "reduce-scatter" if computation.name.startswith("all-reduce-scatter") else kind.name
    largest = max(shapes, key=lambda shape: shape.bytes)
    groups = groups_of(collective.attributes, devices)
    if (groups == groups[:, :1]).all():  # a permutation of one device
        groups = groups[:, :1]
    return HloExchange(name, sum(shape.bytes for shape in shapes), groups, largest.dtype, len(shapes))


def exchange_between_slices(send: HloInstruction) -> HloExchange | None:
    """Return the collective between slices that a ``send`` is a part of; None if its text does not say who takes part.

    Raises:
        ValueError: participants written in a way that is not known.
    """
    said, target = _KIND.search(send.attributes), _TARGET.search(send.attributes)
    if said is None or target is None:
        return None
    kind = said[1].lower().replace("_", "-")
    kind = _RENAMED.get(kind, kind)
    groups = _chip_numbers(target[1].strip('"'))
    shape = max(send.shapes, key=lambda shape: shape.bytes)
    # What a device holds after an all-gather is what all of its group sent.
    parts = groups.shape[1] if BY_NAME[kind].counts_result else 1
    return HloExchange(kind, parts * shape.bytes, groups, shape.dtype, 1)


def _chip_numbers(text: str) -> np.ndarray:
    """Return the numbers of the chips of each group, one a row; of a permutation source and target.

    Args:
        text: slices and chips of which the same ones of each slice form a group, ``{1,2}x{0:31}``; or groups,
            ``{{100000,200000},{100001,200001}}``; or pairs, ``{{100000->200000}}``.

    Raises:
        ValueError: it is none of the three.
    """
    if found := re.fullmatch(r"\{([\d,:]+)\}x\{([\d,:]+)\}", text):
        slices, chips = map(_ranges, found.groups())
        return chips[:, None] + SLICE_NUMBERS * slices
    if re.fullmatch(r"\{(\{\d+((,|->)\d+)*\},?)+\}", text):
        return np.array([re.findall(r"\d+", row) for row in re.findall(r"\{([^{}]+)\}", text)], int)
    raise ValueError(f"Chips of slices written in a way that is not known: {text[:160]!r}.")


def _ranges(text: str) -> np.ndarray:
    """Return the numbers of a text such as ``0:3,8``: ranges have their last number, too."""
    parts = [list(map(int, part.split(":"))) for part in text.split(",")]
    return np.concatenate([np.arange(part[0], part[-1] + 1) for part in parts])
