"""Fusing: groups of one place that follow each other become one node, one executable, one launch.

Only where nobody waits for what he did not wait for before: a place carries out its groups in program order, so a group
may join the one before it if all that it needs had ended before that one began, and if every other place that reads
from that one reads later than this group ends anyway. A pipeline's microbatches therefore stay apart. It follows that
the graph stays free of cycles and the groups stay in an order that respects all dependencies.
"""

from __future__ import annotations

from collections.abc import Sequence

from pathways_nb.program.items import Group


def fuse(groups: Sequence[Group]) -> list[Group]:
    """The same items in as many groups or fewer.

    Args:
        groups: in an order that respects their dependencies.
    """
    made_in = {value: i for i, group in enumerate(groups) for item in group.items for value in item.outputs}
    needs = [
        {made_in[v] for item in group.items for v in item.values() if v in made_in} - {i}
        for i, group in enumerate(groups)
    ]
    earlier = _earlier(groups, needs)
    readers: list[list[int]] = [[] for _ in groups]
    """Of each group, those at other places."""
    for i, producers in enumerate(needs):
        for producer in producers:
            if groups[producer].place != groups[i].place:
                readers[producer].append(i)

    def may_join(i: int, members: list[int]) -> bool:
        there = earlier[members[0]] | sum(1 << member for member in members)
        return all(there >> need & 1 for need in needs[i]) and all(
            earlier[reader] >> i & 1 for member in members for reader in readers[member]
        )

    newest: dict[int, list[int]] = {}
    fused: list[list[int]] = []
    for i, group in enumerate(groups):
        if group.place in newest and may_join(i, newest[group.place]):
            newest[group.place].append(i)
        else:
            newest[group.place] = [i]
            fused.append(newest[group.place])
    return [_together([groups[i] for i in members]) for members in fused]


def _earlier(groups: Sequence[Group], needs: Sequence[set[int]]) -> list[int]:
    """For each group, those that have ended when it begins, as bits: what it needs, and what its place does before."""
    found: list[int] = []
    before: dict[int, int] = {}
    for i, group in enumerate(groups):
        bits = 0
        for other in needs[i] | ({before[group.place]} if group.place in before else set()):
            bits |= found[other] | 1 << other
        found.append(bits)
        before[group.place] = i
    return found


def _together(groups: Sequence[Group]) -> Group:
    if len(groups) == 1:
        return groups[0]
    items = [item for group in groups for item in group.items]
    return Group(groups[0].place, items, tuple(group.name for group in groups))
