"""What a program of many blocks takes, from programs of a few: each further block adds what the last ones added."""

from __future__ import annotations

from collections.abc import Sequence

from pathways_nb.cost.hlo.buffers import Buffers, LiveRanges

_PARTS, _LOOKS = 10, 32
"""Parts of a program's course, and how often each is looked at."""


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


def extended_bytes(programs: Sequence[tuple[Buffers, LiveRanges]], depths: Sequence[int], blocks: int) -> float:
    """Return the bytes of a program of many blocks.

    Few blocks need most memory in the loss, many where the backward pass begins, so the whole does not go along one
    line. Each part of the program's course does; the most of any part is what all blocks need. The gaps between values
    are taken as those of the deepest program.

    Args:
        programs: buffers, and how long each lives, of the compiled programs.
        depths: their blocks, ascending.
        blocks: of the whole program.
    """
    found = [buffers for buffers, _ in programs]
    stay = extended([one.bytes["arguments"] + one.bytes["results"] for one in found], depths, blocks)
    each = [_temporaries(buffers, live) for buffers, live in programs]
    most = max(extended(values, depths, blocks) for values in zip(*each, strict=True))
    live = max(each[-1])
    return stay + most * (found[-1].bytes["temporaries"] / live if live else 1.0)


def _temporaries(buffers: Buffers, live: LiveRanges) -> list[float]:
    """Return the most bytes that temporary values take in each part of a program's course."""
    lives = {(one.name, one.part): (one.begin, one.end) for one in live.ranges}
    values = [
        (*lives[value.name, value.part], value.allocation, value.offset, value.offset + value.bytes)
        for value in buffers.values
        if value.use == "temporaries" and (value.name, value.part) in lives
    ]
    most = [0.0] * _PARTS
    for look in range(_PARTS * _LOOKS):
        at = (look + 0.5) * len(live.sequence) / (_PARTS * _LOOKS)
        total, place, end = 0, -1, 0
        # Values that share bytes, such as an array and its update in place, are counted once.
        for allocation, low, high in sorted(value[2:] for value in values if value[0] <= at <= value[1]):
            if allocation != place:
                place, end = allocation, 0
            total += max(0, high - max(low, end))
            end = max(end, high)
        most[look // _LOOKS] = max(most[look // _LOOKS], float(total))
    return most
