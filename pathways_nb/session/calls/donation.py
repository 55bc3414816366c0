"""Donated arguments: a future may be donated once, and not read in the same call.

XLA may write results into the memory of a donated argument. A later read would see another value, so a donated future
is marked at once, before the program runs, and names the line that donated it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pathways_nb.errors import LostError, UsageError
from pathways_nb.plan import source_lines
from pathways_nb.program.signature import Signature
from pathways_nb.session.futures import Future
from pathways_nb.session.session import Session


def check_futures(call: Signature) -> None:
    """Check that no argument was donated before, and that none is both donated and read in this call.

    Raises:
        LostError: an argument was donated by an earlier call.
        UsageError: an argument is donated and passed twice.
    """
    check_usable(call.leaves, call.name)
    passed = Counter(map(id, call.leaves)) if call.donated else Counter[int]()
    for index in call.donated:
        leaf = call.leaves[index]
        if isinstance(leaf, Future) and passed[id(leaf)] > 1:
            raise UsageError(f"{call.name(index)} is donated and passed twice in one call.")


def check_usable(leaves: Sequence[Any], name: Callable[[int], str], donated: Sequence[int] = ()) -> None:
    """Check that no argument was donated.

    Args:
        leaves: all arguments.
        name: returns what errors call one.
        donated: positions of those that this call has donated itself.

    Raises:
        LostError: one was donated by an earlier call.
    """
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, Future) and index not in donated:
            try:
                leaf.check_usable()
            except LostError as error:
                raise LostError(f"{name(index)}: {error}") from None


def consume(session: Session, donated: Sequence[int], leaves: Sequence[Any]) -> list[Future]:
    """Mark the donated futures of a call, so that later uses name its line; ``session.donating`` is held.

    Args:
        session: the controller.
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
    session.donations += 1  # last: who reads the new number finds them marked
    return futures
