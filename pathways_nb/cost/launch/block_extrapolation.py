"""What a program of many blocks takes, from programs of a few: each further block adds what the last ones added."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pathways_nb.cost.hlo.buffers import Buffers, LiveRanges
from pathways_nb.trace.launch_ops import BACKWARD, Ops

_AHEAD, _BEHIND = 2, 2
"""Parts of a program's course up to the backward pass, and of the backward pass."""


class HeldBuffers(NamedTuple):
    """What a program holds in memory.

    Args:
        buffers: its assignment of buffers.
        live: how long each value lives.
        ops: of the program, whose labels say what belongs to the backward pass.
        backward: the instruction with which that begins; empty without one.
    """

    buffers: Buffers
    live: LiveRanges
    ops: Ops
    backward: str = ""


def extended(values: Sequence[float], depths: Sequence[int], blocks: int) -> float:
    """Return a value at a number of blocks, on the line through its values at the two greatest depths.

    Args:
        values: such as seconds, or bytes, at each depth; one alone is taken as it is.
        depths: blocks of the programs that were compiled, ascending.
        blocks: of the whole program.
    """
    if len(values) == 1:
        return values[0]
    more = (blocks - depths[-1]) / (depths[-1] - depths[-2])
    return values[-1] + more * (values[-1] - values[-2])


def extended_bytes(programs: Sequence[HeldBuffers], depths: Sequence[int], blocks: int) -> float:
    """Return the bytes of a program of many blocks.

    Few blocks need most memory in the loss, many where the backward pass begins or ends, so the whole does not go along
    one line. Each part of the program's course does; the most of any part is what all blocks need. The gaps between
    values are taken as those of the deepest program.

    Args:
        programs: the compiled programs.
        depths: their blocks, ascending.
        blocks: of the whole program.
    """
    found = [one.buffers for one in programs]
    stay = extended([one.bytes["arguments"] + one.bytes["results"] for one in found], depths, blocks)
    each = [_temporaries(one) for one in programs]
    most = max(extended(values, depths, blocks) for values in zip(*each, strict=True))
    live = max(each[-1])
    return stay + most * (found[-1].bytes["temporaries"] / live if live else 1.0)


def _temporaries(program: HeldBuffers) -> list[float]:
    """Return the most bytes that temporary values take in each part of a program's course."""
    buffers, live = program.buffers, program.live
    lives = {(one.name, one.part): (one.begin, one.end) for one in live.ranges}
    values = [
        (*lives[value.name, value.part], value.allocation, value.offset, value.offset + value.bytes)
        for value in buffers.values
        if value.use == "temporaries" and (value.name, value.part) in lives
    ]
    # (positions,) bytes of all values, those that share their bytes counted each: at least what is held.
    change = np.zeros(len(live.sequence) + 1)
    for first, last, _, low, high in values:
        change[first] += high - low
        change[min(last + 1, len(live.sequence))] -= high - low
    bound = np.cumsum(change)
    return [_most(values, bound, int(begin), int(end)) for begin, end in pairwise(_parts(program))]


def _most(values: Sequence[tuple[int, int, int, int, int]], bound: np.ndarray, begin: int, end: int) -> float:
    """Return the most bytes that values take anywhere in a part.

    Args:
        values: as in ``_held``.
        bound: (positions,) bytes that are not exceeded.
        begin: first position of the part.
        end: the position behind it.
    """
    most = 0.0
    # What is held is the costly question, so it is asked where the bound is highest first.
    for at in begin + np.argsort(-bound[begin : max(end, begin + 1)], kind="stable"):
        if bound[at] <= most:
            break
        most = max(most, _held(values, int(at)))
    return most


def _held(values: Sequence[tuple[int, int, int, int, int]], at: float) -> float:
    """Return the bytes that values take at a position; those that share bytes, as an update in place, count once.

    Args:
        values: first and last position of each, its allocation, and the begin and end of its bytes there.
        at: the position.
    """
    total, place, end = 0, -1, 0
    for allocation, low, high in sorted(value[2:] for value in values if value[0] <= at <= value[1]):
        if allocation != place:
            place, end = allocation, 0
        total += max(0, high - max(low, end))
        end = max(end, high)
    return float(total)


def _parts(program: HeldBuffers) -> list[float]:
    """Return where the parts of a program's course begin, and where the last one ends.

    They are the same parts at each depth: the forward pass with the loss, stretches of the backward pass, the rest.
    Where no operation says what it belongs to, they are stretches of the whole.
    """
    sequence, backward = program.live.sequence, {label.name for label in program.ops.labels if label.phase in BACKWARD}
    where = [at for at, name in enumerate(sequence) if name in backward]
    begins = program.backward in sequence
    first = float(sequence.index(program.backward)) if begins else where[0] if where else len(sequence) / 2
    last = float(where[-1] + 1) if where else len(sequence)
    parts = [*np.linspace(0, first, _AHEAD + 1)[:-1], *np.linspace(first, last, _BEHIND + 1)]
    return [*map(float, parts), float(len(sequence))]
