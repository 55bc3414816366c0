"""What belongs to which block: from the units of a run on to all nodes that read or make what is theirs.

A block of a training step lies in many places of its jaxpr: forward, backward, recomputed, its part of the optimizer
and of the norm of gradients. From one of these places the others are reached by going, for all blocks at once, from a
value to the nodes that read it, and from a node to those that make what it reads. A node of one block is taken only
together with a node like it of each other block; those form a *role*. Nothing is assumed about their order.

What is found is a proposal. ``block_removal`` decides what it is good for.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from pathways_nb.jaxpr.block_level import BlockNode

Family = tuple[int, ...]
"""One value, or one node, of each block."""


@dataclass
class BlockAlignment:
    """Roles of nodes.

    Args:
        nodes: of a level.
        users: of each value, as ``users_of`` returns them.
        blocks: how many.
        roles: the nodes of each role, by block.
        of_node: role and block, by node.
        of_value: role, result and block, by value.
    """

    nodes: Sequence[BlockNode]
    users: dict[int, list[tuple[int, int]]]
    blocks: int
    roles: list[Family] = field(default_factory=list)
    of_node: dict[int, tuple[int, int]] = field(default_factory=dict)
    of_value: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def role(self, family: Sequence[int]) -> list[Family]:
        """Give nodes, one of each block, a role; return the families of their results."""
        number = len(self.roles)
        self.roles.append(tuple(family))
        for block, at in enumerate(family):
            self.of_node[at] = number, block
            for n, value in enumerate(self.nodes[at].outputs):
                self.of_value[value] = number, n, block
        return self.results(number)

    def results(self, number: int) -> list[Family]:
        """Return the families of the results of a role."""
        return list(zip(*(self.nodes[at].outputs for at in self.roles[number]), strict=True))

    def operands(self, number: int) -> list[Family]:
        """Return the families of the operands of a role."""
        return list(zip(*(self.nodes[at].inputs for at in self.roles[number]), strict=True))


def users_of(nodes: Sequence[BlockNode]) -> dict[int, list[tuple[int, int]]]:
    """Return which nodes read each value, and as which of their operands."""
    found: dict[int, list[tuple[int, int]]] = {}
    for at, node in enumerate(nodes):
        for position, value in enumerate(node.inputs):
            found.setdefault(value, []).append((at, position))
    return found


def aligned(
    nodes: Sequence[BlockNode],
    users: dict[int, list[tuple[int, int]]],
    seeds: Sequence[Sequence[int]],
    literals: dict[int, object],
) -> BlockAlignment:
    """Return the roles that follow from those of a few nodes.

    Args:
        nodes: of a level.
        users: as ``users_of`` returns them.
        seeds: nodes of each block, in the same order of roles.
        literals: values that are literals.
    """
    found = BlockAlignment(nodes, users, len(seeds))
    maker = {value: (at, n) for at, node in enumerate(nodes) for n, value in enumerate(node.outputs)}
    values: deque[Family] = deque()
    for family in zip(*seeds, strict=True):
        values.extend(found.role(family))
    asked: set[Family] = set()
    looked = 0  # roles whose operands were looked at
    while True:
        while values:
            family = values.popleft()
            if family not in asked:
                asked.add(family)
                for readers in _readers(found, family):
                    values.extend(found.role(readers))
        if looked == len(found.roles):
            return found
        # Only when nothing is left to read: a result that goes from block to block is then known as one.
        for family in found.operands(looked):
            if len(set(family)) < found.blocks or any(v in literals or v in found.of_value for v in family):
                continue
            makers = [maker.get(value) for value in family]
            if all(one is None for one in makers):
                values.append(family)  # inputs of the whole jaxpr: parameters, states of the optimizer
            elif (made := _makers(found, makers)) is not None:
                values.extend(found.role(made))
        looked += 1


def _readers(found: BlockAlignment, family: Family) -> list[Family]:
    """Return nodes that read the values of a family, one of each block, alike and without a role."""
    each: list[dict[tuple[int, int], list[int]]] = []
    for value in family:
        mine: dict[tuple[int, int], list[int]] = {}
        for at, position in found.users.get(value, ()):
            if at not in found.of_node:
                mine.setdefault((found.nodes[at].signature, position), []).append(at)
        each.append(mine)
    taken: list[Family] = []
    already: set[int] = set()
    for key, first in each[0].items():
        lists = [mine.get(key, []) for mine in each]
        # Several readers that are alike are told apart by their order.
        if any(len(one) != len(first) for one in lists):
            continue
        for readers in zip(*lists, strict=True):
            if len(set(readers)) == found.blocks and already.isdisjoint(readers):
                already.update(readers)
                taken.append(readers)
    return taken


def _makers(found: BlockAlignment, makers: Sequence[tuple[int, int] | None]) -> Family | None:
    """Return the nodes that make the values of a family, if they are alike and without a role."""
    known = [one for one in makers if one is not None]
    if len(known) < found.blocks or len({n for _, n in known}) > 1:
        return None
    family = tuple(at for at, _ in known)
    if len(set(family)) < found.blocks or any(at in found.of_node for at in family):
        return None
    return family if len({found.nodes[at].signature for at in family}) == 1 else None


def lacking(found: BlockAlignment) -> list[frozenset[int]]:
    """Return sets of one or two blocks that alone lack readers of what is theirs, the commonest first.

    So does the first block of a model whose input needs no gradient.
    """
    sets: Counter[frozenset[int]] = Counter()
    made = {family for number in range(len(found.roles)) for family in found.results(number)}
    read = {family for number in range(len(found.roles)) for family in found.operands(number)}
    for family in made | {one for one in read if not any(value in found.of_value for value in one)}:
        if len(set(family)) < found.blocks:
            continue
        keys: Counter[tuple[int, int]] = Counter()
        each = []
        for value in family:
            readers = found.users.get(value, ())
            mine = {(found.nodes[at].signature, position) for at, position in readers if at not in found.of_node}
            each.append(mine)
            keys.update(mine)
        for key, times in keys.items():
            if found.blocks - 2 <= times < found.blocks:
                sets[frozenset(block for block, mine in enumerate(each) if key not in mine)] += 1
    return [one for one, _ in sets.most_common(4)]
