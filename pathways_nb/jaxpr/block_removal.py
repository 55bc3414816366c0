"""Which blocks may be taken out of a level, and what then takes the place of what they made.

The rules decide alone; whatever proposed the roles may be wrong. For each operand of a role, over all blocks, one of
these must hold:

- *local*: each block reads what its own node of another role makes;
- *shared*: all read the same value, which no block makes;
- *own*: each reads another value that no block makes and that nothing else reads: a parameter, a state; whole
  numbers that are known must be equal, because loops may run so often;
- *chain*: each reads what another block's node of one role makes, the first one something else, and the blocks form one
  line: activations forward, gradients backward, a sum over all blocks in any order.

Without a block its successor in a chain, or what reads the end of it, reads what the block itself read there. A block
whose values are read by anything else stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pathways_nb.jaxpr.block_alignment import BlockAlignment
from pathways_nb.jaxpr.block_level import BlockLevel

_MOST_BYTES = 1 << 12
"""Bytes up to which a constant of whole numbers may say how often loops run."""
Slot = tuple[int, int]
"""An operand of a role: the role, and which of its operands."""


@dataclass
class BlockRemoval:
    """What may be taken out.

    Args:
        alignment: the roles.
        chains: of each operand that is a chain, the values that the blocks read.
        links: the role and the result by which each chain goes from block to block.
        ends: the chain that ends with a value, by value.
        own: the values that each block alone reads, with the operand that reads them first, by block.
        stays: blocks that stay.
    """

    alignment: BlockAlignment
    chains: dict[Slot, tuple[int, ...]] = field(default_factory=dict)
    links: dict[Slot, tuple[int, int]] = field(default_factory=dict)
    ends: dict[int, Slot] = field(default_factory=dict)
    own: list[dict[int, Slot]] = field(default_factory=list)
    stays: set[int] = field(default_factory=set)

    @property
    def removable(self) -> list[int]:
        """The blocks that may be taken out."""
        return [block for block in range(self.alignment.blocks) if block not in self.stays]

    def instead(self, value: int, slot: Slot | None, gone: Collection[int]) -> int:
        """Return what is read in place of a value when blocks are gone.

        Args:
            value: that is read.
            slot: the operand that reads it, if that is a chain.
            gone: blocks that are taken out.
        """
        # Each step goes back in the order of the program, so this ends.
        while (made := self.alignment.of_value.get(value)) is not None and made[2] in gone:
            if slot is None or self.links[slot] != made[:2]:
                slot = self.ends[value]
            value = self.chains[slot][made[2]]
        return value


def removal(level: BlockLevel, alignment: BlockAlignment, stays: Iterable[int] = ()) -> BlockRemoval | None:
    """Return what may be taken out; None if an operand of a role follows none of the rules.

    Args:
        level: that the nodes are of.
        alignment: the proposed roles.
        stays: blocks that stay for other reasons.
    """
    found = BlockRemoval(alignment, own=[{} for _ in range(alignment.blocks)], stays=set(stays))
    readers: list[tuple[Slot, tuple[int, ...]]] = []
    for role in range(len(alignment.roles)):
        for position, values in enumerate(alignment.operands(role)):
            slot = role, position
            made = [alignment.of_value.get(value) for value in values]
            if not any(made):
                if not _is_outside(level, alignment, role, values):
                    return None
                if len(set(values)) > 1 and values[0] not in level.literals:
                    readers.append((slot, values))
            elif not _is_local(made):
                if not _is_chain(made):
                    return None
                found.chains[slot], found.links[slot] = values, _usual(made)
    for slot, values in readers:
        for block, value in enumerate(values):
            found.own[block].setdefault(value, slot)
    _find_ends(found)
    _keep_what_others_read(level, found)
    return found


def _is_outside(level: BlockLevel, alignment: BlockAlignment, role: int, values: Sequence[int]) -> bool:
    """Return whether operands that no block makes are shared or own: literals and whole numbers must be equal."""
    # A number of a block that only makes its random key another one changes no work.
    makes_key = level.ops[alignment.nodes[alignment.roles[role][0]].op].name.startswith("random_")
    literals = [level.literals.get(value) for value in values]
    if not any(one is not None for one in literals):
        return makes_key or len({_whole_numbers(level.consts.get(value)) for value in values}) == 1
    if any(one is None for one in literals):
        return False
    return makes_key or len({repr(getattr(one, "val", None)) for one in literals}) == 1


def _whole_numbers(const: Any) -> bytes | None:
    """Return the values of a small constant of whole numbers, by which a loop may run; None of anything else."""
    if getattr(getattr(const, "dtype", None), "kind", "") not in ("i", "u") or const.nbytes > _MOST_BYTES:
        return None
    return bytes(np.asarray(const).tobytes())


def _is_local(made: Sequence[tuple[int, int, int] | None]) -> bool:
    """Return whether each block reads its own value of one role."""
    return all(
        one is not None and one[2] == block and one[:2] == (made[0] or one)[:2] for block, one in enumerate(made)
    )


def _usual(made: Iterable[tuple[int, int, int] | None]) -> tuple[int, int]:
    """Return the role and the result that most values are of."""
    return Counter(one[:2] for one in made if one is not None).most_common(1)[0][0]


def _is_chain(made: Sequence[tuple[int, int, int] | None]) -> bool:
    """Return whether blocks that read each other's values of one role form one line."""
    usual = _usual(made)
    before = [one[2] if one is not None and one[:2] == usual else None for one in made]
    after = {one: block for block, one in enumerate(before)}
    block: int | None = None
    for _ in made:
        if block not in after:
            return False
        block = after.pop(block)
    return True


def _find_ends(found: BlockRemoval) -> None:
    """Note the values with which chains end, and keep blocks whose values start another chain and end none."""
    alignment = found.alignment
    linked: dict[tuple[int, int], list[Slot]] = {}
    for slot, link in found.links.items():
        linked.setdefault(link, []).append(slot)
    for (role, n), slots in linked.items():
        # Who reads the end of several chains that differ reads neither of them.
        if len({found.chains[slot] for slot in slots}) == 1:
            values = found.chains[slots[0]]
            made = (alignment.nodes[at].outputs[n] for at in alignment.roles[role])
            found.ends |= {value: slots[0] for value in made if value not in values}
    for (role, n), slots in linked.items():
        for value in {value for slot in slots for value in found.chains[slot]}:
            made_by = alignment.of_value.get(value)
            if made_by is not None and made_by[:2] != (role, n) and value not in found.ends:
                found.stays.add(made_by[2])


def _keep_what_others_read(level: BlockLevel, found: BlockRemoval) -> None:
    """Keep blocks whose values, or whose own operands, something outside them reads."""
    alignment = found.alignment
    returned = Counter(level.outputs)
    for family in alignment.roles:
        for n in range(len(alignment.nodes[family[0]].outputs)):
            values = [alignment.nodes[at].outputs[n] for at in family]
            times = [returned[value] for value in values]
            usual = Counter(times).most_common(1)[0][0]
            for block, value in enumerate(values):
                outside = any(at not in alignment.of_node for at, _ in alignment.users.get(value, ()))
                is_end = value in found.ends and usual == 0
                if (outside or times[block] != usual) and not is_end:
                    found.stays.add(block)
        for block, at in enumerate(family):
            if level.ops[alignment.nodes[at].op].has_effects and alignment.nodes[at].signature < 0:
                found.stays.add(block)
    for block, own in enumerate(found.own):
        for value in own:
            for at, _ in alignment.users.get(value, ()):
                if alignment.of_node.get(at, (0, -1))[1] != block:
                    found.stays.add(block)
