"""Donated arguments: a future may be donated once, and not read in the same call.

XLA may write results into the memory of a donated argument. A later read would see another value, so a donated future
is marked at once, before the program runs, and names the line that donated it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pathways_nb.errors import LostError, UsageError
from pathways_nb.plan import source_lines
from pathways_nb.program.signature import Signature
from pathways_nb.session.futures import Future


def check_futures(call: Signature) -> None:
    """Check that no argument was donated before, and that none is both donated and read in this call.

    Raises:
        LostError: an argument was donated by an earlier call.
        UsageError: an argument is donated and passed twice.
    """
    for index, leaf in enumerate(call.leaves):
        if isinstance(leaf, Future):
            try:
                leaf.check_usable()
            except LostError as error:
                raise LostError(f"{call.name(index)}: {error}") from None
    passed = Counter(map(id, call.leaves)) if call.donated else Counter[int]()
    for index in call.donated:
        leaf = call.leaves[index]
        if isinstance(leaf, Future) and passed[id(leaf)] > 1:
            raise UsageError(f"{call.name(index)} is donated and passed twice in one call.")


def consume(donated: Sequence[int], leaves: Sequence[Any]) -> list[Future]:
    """Mark the donated futures of a call, so that later uses name its line.

    Args:
        donated: positions of the donated arguments.
        leaves: all arguments.

    Returns:
        The donated futures.
    """
    if not donated:
        return []
    where = source_lines.user_line() or "an earlier call"
    futures = [leaves[index] for index in donated if isinstance(leaves[index], Future)]
    for future in futures:
        future._consumed, future._known = where, None  # spelled out: a training step donates hundreds
    return futures
