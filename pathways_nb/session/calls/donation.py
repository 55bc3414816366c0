"""Donated arguments: a future may be donated once, and not read in the same call.

XLA may write results into the memory of a donated argument. A later read would see another value, so a donated future
is marked at once, before the program runs, and names the line that donated it.
"""

from __future__ import annotations

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
    for index in call.donated:
        leaf = call.leaves[index]
        if isinstance(leaf, Future) and sum(other is leaf for other in call.leaves) > 1:
            raise UsageError(f"{call.name(index)} is donated and passed twice in one call.")


def consume(call: Signature) -> list[Future]:
    """Mark the donated futures of a call, so that later uses name its line.

    Returns:
        The donated futures.
    """
    if not call.donated:
        return []
    where = source_lines.user_line()
    futures = [call.leaves[index] for index in call.donated if isinstance(call.leaves[index], Future)]
    for future in futures:
        future.consume(where or "an earlier call")
    return futures
