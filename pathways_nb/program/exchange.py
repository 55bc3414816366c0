"""Parts of an exchange: what ``pw.all_reduce`` adds to a trace, and how it becomes buckets.

Each leaf is summed by a computation of its own at each place. A mark in JAX's name stack, which is kept for each
equation, says which sums belong together. Once the whole program is known, so is the order in which its nodes make the
leaves; then the sums are gathered in that order into buckets, each a node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any, NamedTuple

import jax

_MARK = re.compile(r"pw-sum-(\d+)-(\d+)-(\d+)-(\d+)-(\d+)-end")


class Part(NamedTuple):
    """Which sum of an exchange a computation is.

    Args:
        exchange: number of the call of ``pw.all_reduce``.
        leaf: position of the leaf in the tree.
        own: position of the sum's place among the places of the exchange.
        places: number of places, which is the number of values that are added.
        bucket: the most bytes of a bucket.
    """

    exchange: int
    leaf: int
    own: int
    places: int
    bucket: int


def marked(part: Part) -> AbstractContextManager[Any]:
    """Return a context in which every computation that is called is this sum of an exchange."""
    return jax.named_scope("pw-sum-" + "-".join(map(str, part)) + "-end")


def part_of(name_stack: str, operands: int) -> Part | None:
    """Return the sum that an equation's name stack says it is.

    Args:
        name_stack: of the equation.
        operands: number of its operands. A transformation such as ``jax.jvp`` may have added some: then it adds more
            than the parts, and is a computation like any other.
    """
    found = _MARK.search(name_stack)
    part = Part(*map(int, found.groups())) if found else None
    return part if part and part.places == operands else None


def buckets(sizes: Sequence[int], most: int) -> list[range]:
    """Return the positions of each bucket: neighbours, as many as fit.

    Args:
        sizes: bytes of each leaf, in the order in which they are made.
        most: the most bytes of a bucket; a leaf that is larger has one of its own.
    """
    starts, held = [0], 0
    for position, size in enumerate(sizes):
        if held and held + size > most:
            starts.append(position)
            held = 0
        held += size
    return [range(start, stop) for start, stop in pairwise([*starts, len(sizes)])] if sizes else []
