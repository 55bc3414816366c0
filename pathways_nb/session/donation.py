"""Donated arguments: a future is given away once, and not read in the same call."""

from __future__ import annotations

from pathways_nb.errors import UsageError
from pathways_nb.plan import source_lines
from pathways_nb.program.signature import Signature
from pathways_nb.session.futures import Future


def check_futures(call: Signature) -> None:
    """Futures among the arguments must not be consumed already, nor donated and read in the same call."""
    for leaf in call.leaves:
        if isinstance(leaf, Future):
            leaf.check_usable()
    for index in call.donated:
        leaf = call.leaves[index]
        if isinstance(leaf, Future) and sum(other is leaf for other in call.leaves) > 1:
            raise UsageError(f"{call.owner}: {call.names[index]} is donated and passed twice in one call.")


def consume(call: Signature) -> list[Future]:
    """Mark the donated futures of a call; returns them."""
    if not call.donated:
        return []
    where = source_lines.user_line()
    futures = [call.leaves[index] for index in call.donated if isinstance(call.leaves[index], Future)]
    for future in futures:
        future.consume(where or "an earlier call")
    return futures
