"""The sums of an exchange as groups of items: one for each bucket and place, in the order in which leaves are made.

That order is that of the nodes that make the leaves, so it is known only once the whole program is traced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from pathways_nb.errors import UsageError
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.exchange_sums import ExchangeSum
from pathways_nb.program.items import Const, ProgramItem
from pathways_nb.program.signature import Aval


def sum_of(item: ProgramItem) -> ExchangeSum:
    """Return which sum an item is that is one."""
    assert item.exchange_sum is not None
    return item.exchange_sum


def grouped(
    sums: Sequence[ProgramItem], made_in: Mapping[int, int], avals: Sequence[Aval]
) -> Iterator[list[ProgramItem]]:
    """Yield the items of each group.

    Args:
        sums: of one exchange; those that nothing reads may be missing.
        made_in: by value, the position of what makes it; arguments are absent.
        avals: shape and dtype of each value.
    """
    leaves: dict[int, list[ProgramItem]] = {}
    for item in sums:
        leaves.setdefault(sum_of(item).leaf, []).append(item)
    # The leaves that are made first go first: their exchange runs while the rest of the backward pass computes.
    made = sorted(leaves.values(), key=lambda leaf: max((made_in.get(v, -1) for v in leaf[0].values()), default=-1))
    for bucket in buckets([avals[leaf[0].outputs[0]].bytes for leaf in made], sum_of(sums[0]).bucket):
        together = [item for at in bucket for item in made[at]]
        # A node is at one place, so each place adds the bucket in a node of its own.
        for own in sorted({sum_of(item).own for item in together}):
            yield [item for item in together if sum_of(item).own == own]


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


def check_place(
    item: ProgramItem, homes: Mapping[int, int], places: Mapping[int, VirtualSlice], avals: Sequence[Aval]
) -> None:
    """Refuse a sum whose own part is made at another place.

    Args:
        item: the sum.
        homes: the place of each value that has one.
        places: the virtual slices by serial.
        avals: shape and dtype of each value.

    Raises:
        UsageError: naming the part and both places.
    """
    own, position = item.inputs[sum_of(item).own], sum_of(item).own
    # Constants, and arguments whose place is not known, may be anywhere.
    if isinstance(own, Const) or item.place is None or homes.get(own, item.place) == item.place:
        return
    aval = avals[own]
    raise UsageError(
        f"all_reduce: a leaf of tree {position}, {aval.dtype}[{','.join(map(str, aval.shape))}], is computed on "
        f"{places[homes[own]].label}, but across[{position}] is {places[item.place].label}"
        f"{f' ({item.line})' if item.line else ''}. Give the trees in the order of across=, each computed at its place."
    )
