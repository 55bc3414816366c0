"""The sums of an exchange between places: what ``pw.all_reduce`` adds to a trace, and how a walk finds it again.

Each leaf is summed by a computation of its own at each place. A mark in JAX's name stack, which is kept for each
equation, says which sums belong together. ``exchange_groups`` joins them to nodes once the whole program is known.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax

_MARK = re.compile(r"pw-sum-(\d+)-(\d+)-(\d+)-(\d+)-(\d+)-end")


class ExchangeSum(NamedTuple):
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


def marked_as_sum(which: ExchangeSum) -> AbstractContextManager[Any]:
    """Return a context in which every computation that is called is this sum of an exchange."""
    return jax.named_scope("pw-sum-" + "-".join(map(str, which)) + "-end")


def exchange_sum_of(name_stack: str, operands: int) -> ExchangeSum | None:
    """Return the sum that an equation's name stack says it is.

    Args:
        name_stack: of the equation.
        operands: number of its operands. A transformation such as ``jax.jvp`` may have added some: then it adds more
            than the parts, and is a computation like any other.
    """
    found = _MARK.search(name_stack)
    which = ExchangeSum(*map(int, found.groups())) if found else None
    return which if which and which.places == operands else None
