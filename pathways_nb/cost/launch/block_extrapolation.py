"""What a program of many blocks takes, from programs of a few: each further block adds what the last ones added."""

from __future__ import annotations

from collections.abc import Sequence


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
