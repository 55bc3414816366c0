"""Check that orders of enqueues are compatible (Pathways, section 4.4).

A device runs what it was sent in the order in which it was sent, and a gang begins when it is first in the queue of
each of its devices. If two devices were sent two gangs in opposite orders, each gang waits behind the other for ever.
This module finds such a cycle, of any length, by simulating the queues until all gangs have run or none can.

The controller does not need it, since one total order has no cycle. It is for users who want to see what one order
prevents, and for tests. Runs of several ranks are compared in ``comparisons.rank_orders``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import NamedTuple

from pathways_nb.controller.order_difference import OrderDifference
from pathways_nb.errors import UsageError
from pathways_nb.util.words import counted

Gang = Hashable
"""Any hashable name of a gang; equal names are the same gang."""


class Before(NamedTuple):
    """Gang ``earlier`` was enqueued before gang ``later`` on ``island``."""

    island: Hashable
    earlier: Gang
    later: Gang

    def __str__(self) -> str:
        where = f"island {self.island}" if isinstance(self.island, int) else str(self.island)
        return f"{where} has {self.earlier} before {self.later}"


@dataclass(frozen=True)
class OrderCheck:
    """Whether orders are compatible: true, or false with the ``cycle`` or the ``difference``.

    Args:
        orders: how many orders were checked.
        gangs: how many different gangs, or collectives, are in them.
        cycle: gangs that wait for each other; empty if the orders are compatible.
        difference: of traces, the first collective that is not the same on all ranks; None if there is none.
        groups: of traces, how many groups of ranks have collectives.
        between: of traces, collectives of several groups that ranks called in opposite orders: they wait for each other
            unless the devices run those of different groups at the same time. None if the traces do not tell the order.
    """

    orders: int
    gangs: int
    cycle: tuple[Before, ...] = ()
    difference: OrderDifference | None = None
    groups: int = 1
    between: tuple[Before, ...] | None = ()

    def __bool__(self) -> bool:
        return not self.cycle and self.difference is None

    def __repr__(self) -> str:
        if self.difference is not None:
            return f"<{self.difference}>"
        if not self.cycle:
            fit = f"{counted(self.gangs, 'gang')} in {counted(self.orders, 'order')}, which fit together"
            if self.between:
                return (
                    f"<{fit} within each group; but {', '.join(map(str, self.between))}: they hang unless collectives "
                    f"of these groups run at the same time>"
                )
            untold = f" within each of {self.groups} groups; the order between groups is not told"
            return f"<{fit}{untold if self.groups > 1 and self.between is None else ''}>"
        other = "other" if len(self.cycle) == 2 else "next"
        return f"<{', '.join(map(str, self.cycle))}: each waits for the {other} for ever>"


def check_gangs(orders: Mapping[Hashable, Sequence[Gang]]) -> OrderCheck:
    """Return whether gangs enqueued in these orders can all run (Pathways, section 4.4).

    Args:
        orders: for each island or device, the gangs enqueued on it, first to last. A gang that needs several of them is
            in the orders of all.

    Returns:
        A true value if all gangs can run; else a false value that names a cycle of gangs and has it as ``cycle``.

    Raises:
        UsageError: ``orders`` is no dictionary, or an island has a text, or the same gang twice.
    """
    if not isinstance(orders, Mapping):
        raise UsageError(
            f"check_orders({orders!r}): a dictionary is needed, with the gangs of each island in order, such as "
            f"pw.check_orders({{0: ['a', 'b'], 1: ['b', 'a']}})."
        )
    for island, order in orders.items():
        if isinstance(order, (str, PathLike)):
            raise UsageError(
                f"check_orders: {island!r} has {str(order)!r}, and a list of gangs is needed; or a run: that of a "
                f"trace is pw.load({str(order)!r})."
            )
    gangs = {gang for order in orders.values() for gang in order}
    return OrderCheck(len(orders), len(gangs), tuple(find_cycle(orders) or ()))


def find_cycle(orders: Mapping[Hashable, Sequence[Gang]]) -> list[Before] | None:
    """Return a cycle in the union of the orders, or ``None``; in time proportional to their total length.

    Each ``later`` is the next one's ``earlier``, the last one's the first's; no island comes twice.

    Raises:
        UsageError: an island has the same gang twice.
    """
    needs = _needs(orders)
    first = _play(orders, needs)
    if not first:
        return None
    # Every gang that is left waits, on one of its islands, for the first gang of that queue, which is left as well.
    # Following these waits must therefore come back to a gang seen before: the cycle.
    chain: dict[Gang, Before] = {}
    gang = next(iter(first.values()))
    while gang not in chain:
        island = next(island for island in needs[gang] if first[island] != gang)
        chain[gang] = Before(island, first[island], gang)
        gang = first[island]
    links = list(chain.values())
    # Gangs before the first one seen twice only lead to the cycle. Followed were waits, from later to earlier: turn it.
    return links[list(chain).index(gang) :][::-1]


def _needs(orders: Mapping[Hashable, Sequence[Gang]]) -> dict[Gang, list[Hashable]]:
    """Return the islands of each gang."""
    needs: dict[Gang, list[Hashable]] = {}
    for island, order in orders.items():
        for gang in order:
            islands = needs.setdefault(gang, [])
            # Islands are gone through one by one, so a second time on one island is the last entry.
            if islands and islands[-1] == island:
                raise UsageError(
                    f"check_orders: {island!r} has {gang!r} twice. A gang is enqueued once: give each its own name, "
                    f"such as {(gang, 0)!r} and {(gang, 1)!r}."
                )
            islands.append(island)
    return needs


def _play(orders: Mapping[Hashable, Sequence[Gang]], needs: Mapping[Gang, Sequence[Hashable]]) -> dict[Hashable, Gang]:
    """Run every gang that is first in all its queues, until none is.

    Returns:
        The first gang of each queue that is not empty then.
    """
    done = dict.fromkeys(orders, 0)
    arrived = dict.fromkeys(needs, 0)
    moved = list(orders)
    while moved:
        island = moved.pop()
        if done[island] == len(orders[island]):
            continue
        gang = orders[island][done[island]]
        arrived[gang] += 1
        # A gang is counted once for each queue that it heads, so it runs when the last of them reaches it.
        if arrived[gang] == len(needs[gang]):
            for each in needs[gang]:
                done[each] += 1
            # Each of these queues has a new head, which may be the last that another gang waits for.
            moved += needs[gang]
    return {island: order[done[island]] for island, order in orders.items() if done[island] < len(order)}
