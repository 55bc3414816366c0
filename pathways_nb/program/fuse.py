"""Fusing: groups that follow each other at one place become one node, with one executable and one launch.

Fusing must not make any node wait for longer, or a pipeline's microbatches would no longer overlap. A place runs its
groups in program order. Therefore a group may join the group before it at its place if both conditions hold:

- everything it reads is made before that group begins, or by that group;
- every group at another place that reads from that group begins only after this group has ended anyway.

The actions of a pipeline never join a group, because the schedule says which launches there are; nor do groups with
different compiler options. Host work is never fused: a host works while its devices do, like a place of its own.

It follows that the graph stays free of cycles, that the order of groups still respects all dependencies, and that the
makespan stays the same if the duration of a fused node is the sum of its parts (tested with random graphs).
"""

from __future__ import annotations

from collections.abc import Sequence

from pathways_nb.program.items import Group


def fuse(groups: Sequence[Group]) -> list[Group]:
    """Return the same items in as many groups or fewer.

    Args:
        groups: in an order that respects their dependencies; the result is in such an order, too.
    """
    made_in = {value: i for i, group in enumerate(groups) for item in group.items for value in item.outputs}
    needs = [
        {made_in[v] for item in group.items for v in item.values() if v in made_in} - {i}
        for i, group in enumerate(groups)
    ]
    earlier = _earlier(groups, needs)
    readers: list[list[int]] = [[] for _ in groups]
    """For each group, the groups at other places that read from it."""
    for i, producers in enumerate(needs):
        for producer in producers:
            if _lane(groups[producer]) != _lane(groups[i]):
                readers[producer].append(i)

    def may_join(i: int, members: list[int]) -> bool:
        """Return whether group ``i`` may join the ``members`` of the newest fused group at its place."""
        first = groups[members[0]]
        if groups[i].host or groups[i].action or first.action or groups[i].compiler_options != first.compiler_options:
            return False
        # What has ended when the fused node begins, and the parts of that node.
        there = earlier[members[0]] | sum(1 << member for member in members)
        # The second condition: whoever reads from the node elsewhere waits for group i anyway, so it begins no later.
        return all(there >> need & 1 for need in needs[i]) and all(
            earlier[reader] >> i & 1 for member in members for reader in readers[member]
        )

    # A group joins the newest fused group of its place or starts one, so the place's own order never changes.
    newest: dict[tuple[int, bool], list[int]] = {}
    fused: list[list[int]] = []
    for i, group in enumerate(groups):
        lane = _lane(group)
        if lane in newest and may_join(i, newest[lane]):
            newest[lane].append(i)
        else:
            newest[lane] = [i]
            fused.append(newest[lane])
    return [_together([groups[i] for i in members]) for members in fused]


def _earlier(groups: Sequence[Group], needs: Sequence[set[int]]) -> list[int]:
    """Return for each group, as a bit set, the groups that must have ended when it begins.

    These are the groups it reads from, the groups that run before it at its place, and all that must end before those.
    With integers as bit sets, a union is one operation whatever the number of groups.
    """
    found: list[int] = []
    before: dict[tuple[int, bool], int] = {}
    for i, group in enumerate(groups):
        bits, lane = 0, _lane(group)
        for other in needs[i] | ({before[lane]} if lane in before else set()):
            bits |= found[other] | 1 << other
        found.append(bits)
        before[lane] = i
    return found


def _lane(group: Group) -> tuple[int, bool]:
    """Return what runs its groups one after another: the devices of a place, or its host."""
    return group.place, group.host is not None


def _together(groups: Sequence[Group]) -> Group:
    """Return groups of one place as one group that remembers their names."""
    if len(groups) == 1:
        return groups[0]
    items = [item for group in groups for item in group.items]
    return Group(groups[0].place, items, tuple(group.name for group in groups))
