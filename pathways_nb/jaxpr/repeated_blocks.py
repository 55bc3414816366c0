"""The blocks that a jaxpr repeats, as a loop in Python writes them, and the jaxpr without some of them.

Blocks are looked for where they are written: in the jaxpr itself, or in a call, a scan over microbatches or a
``shard_map`` that it holds. What they read and make outside of that (parameters, the optimizer) is then found there.
A scan over blocks is one operation already, so there is nothing to find.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pathways_nb.jaxpr.block_alignment import BlockAlignment, aligned, lacking, users_of
from pathways_nb.jaxpr.block_level import HOLDERS, BlockLevel, BlockNode, inlining
from pathways_nb.jaxpr.block_removal import BlockRemoval, removal
from pathways_nb.jaxpr.equation_signatures import Signatures
from pathways_nb.jaxpr.flat import Operation, alive, called, scan_sizes
from pathways_nb.jaxpr.repeated_runs import LEAST, RepeatedRun, repeated_runs

_HOLDERS = 4
"""Operations that hold others and are searched: those that hold most."""
_TOGETHER = (1, 2, 3, 4, 6, 8)
"""How many units of a run may make one block: local and global attention, experts in every other layer."""
_LEAST_SHARE = 0.3
"""Share of a level's operations below which what repeats is no chain of blocks."""
_BETTER = 1.25
"""How many times as much a later run must take out to be preferred to an earlier one."""
_ENOUGH = 0.9
"""Share of the blocks that, if they can be taken out, end the search."""


@dataclass(frozen=True, eq=False)
class RepeatedBlocks:
    """The blocks of one level.

    Args:
        level: where they are.
        removal: which may be taken out, of those that are alike.
        blocks: how many there are, those at the ends that lack something included.
        numbers: the numbers, from 0, of those that are alike.
        inside: the blocks of an operation that holds them; None if they are written in this level.
        holder: position of that operation.
    """

    level: BlockLevel
    removal: BlockRemoval
    blocks: int
    numbers: tuple[int, ...]
    inside: RepeatedBlocks | None = None
    holder: int = -1

    @property
    def removable(self) -> list[int]:
        """The numbers of the blocks that may be taken out."""
        return [self.numbers[block] for block in self.removal.removable]

    @property
    def weight(self) -> float:
        """How many operations may be taken out."""
        size = self.level.signatures.size
        nodes, roles = self.removal.alignment.nodes, self.removal.alignment.roles
        inside = self.inside.weight if self.inside else 0.0
        own = sum(size(self.level.ops[nodes[family[0]].op].eqn) for family in roles if nodes[family[0]].signature >= 0)
        return inside + own * len(self.removable)

    def share(self, total: int) -> float:
        """Return the share of so many operations that all blocks have together."""
        return self.weight / len(self.removable) * self.blocks / total


@dataclass(frozen=True, eq=False)
class KeptLevel:
    """A level without some blocks.

    Args:
        level: that it was.
        ops: what is left; operations have fewer operands and results where blocks had some.
        inputs: positions of the inputs that are left.
        outputs: positions of the outputs that are left.
        results: their values.
        held: what is left in the operation that holds blocks.
        holder: its position in ``ops``.
    """

    level: BlockLevel
    ops: tuple[Operation[int], ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    results: tuple[int, ...]
    held: KeptLevel | None = None
    holder: int = -1


def repeated_blocks(jaxpr: Any, signatures: Signatures | None = None) -> RepeatedBlocks | None:
    """Return the blocks of a jaxpr of which some can be taken out; None if there are none.

    Args:
        jaxpr: closed or open.
        signatures: numbers of its equations, where some are known already.
    """
    signatures = signatures or Signatures()
    first = BlockLevel.of(jaxpr, signatures, inlining(jaxpr, signatures, every=False))
    if (found := _in_level(first, signatures)) is not None:
        return found
    every = BlockLevel.of(jaxpr, signatures, inlining(jaxpr, signatures, every=True))
    return _in_level(every, signatures) if len(every.ops) > len(first.ops) else None


def _in_level(level: BlockLevel, signatures: Signatures) -> RepeatedBlocks | None:
    """Return the blocks of a level, or of what its operations hold."""
    nodes = level.nodes({})
    users = users_of(nodes)
    best: RepeatedBlocks | None = None
    weights = [signatures.size(level.ops[node.op].eqn) for node in nodes]
    total = sum(weights)
    for run in repeated_runs(nodes, weights):
        for seeds in _units(run):
            found = _proposed(level, nodes, users, seeds, ())
            if found is not None and (best is None or found.weight > _BETTER * best.weight):
                best = found
            if (
                best is not None
                and best.share(total) >= _LEAST_SHARE
                and len(best.removable) >= _ENOUGH * (best.blocks - 2)
            ):
                return best
    if best is not None and best.share(total) < _LEAST_SHARE:
        best = None
    if best is not None:
        return best
    holders = [at for at, op in enumerate(level.ops) if op.name in HOLDERS]
    for at in sorted(holders, key=lambda at: -signatures.size(level.ops[at].eqn))[:_HOLDERS]:
        eqn = level.ops[at].eqn
        inner = eqn.params["jaxpr"] if "jaxpr" in eqn.params else called(eqn)
        inside = repeated_blocks(inner, signatures)
        if inside is not None and (found := _around(level, at, inside)) is not None:
            return found
    return None


def _units(run: RepeatedRun) -> Iterator[list[list[int]]]:
    """Yield the units of a run, one by one and several together."""
    for together in _TOGETHER:
        if run.units // together >= LEAST:
            yield run.seeds(together)


def _proposed(
    level: BlockLevel,
    nodes: Sequence[BlockNode],
    users: dict[int, list[tuple[int, int]]],
    seeds: Sequence[Sequence[int]],
    stays: Collection[int],
) -> RepeatedBlocks | None:
    """Return what follows from the nodes of a few roles; without blocks at the ends where those lack something."""

    def tried(kept: Sequence[int]) -> tuple[BlockAlignment, RepeatedBlocks | None]:
        alignment = aligned(nodes, users, [seeds[block] for block in kept], level.literals)
        own = [n for n, block in enumerate(kept) if block in stays]
        found = removal(level, alignment, own)
        good = found is not None and len(found.removable) >= LEAST - 1
        blocks = RepeatedBlocks(level, found, len(seeds), tuple(kept)) if found is not None and good else None
        return alignment, blocks

    everything = range(len(seeds))
    alignment, best = tried(everything)
    if best is not None and len(best.removable) >= len(seeds) - 2:
        return best
    for less in lacking(alignment):
        kept = [block for block in everything if block not in less]
        if len(kept) < LEAST:
            continue
        _, found = tried(kept)
        if found is not None and (best is None or len(found.removable) > len(best.removable)):
            best = found
    return best


def _around(level: BlockLevel, holder: int, inside: RepeatedBlocks) -> RepeatedBlocks | None:
    """Return the blocks of a level that one of its operations holds.

    Args:
        level: around the operation.
        holder: the position of the operation.
        inside: its blocks.
    """
    stays = _held_back(level.ops[holder], inside)
    claims = [_claims(inside, block) for block in range(inside.removal.alignment.blocks)]
    usual = max((tuple(map(tuple, one)) for one in claims), key=[tuple(map(tuple, one)) for one in claims].count)
    kept = [block for block, one in enumerate(claims) if tuple(map(tuple, one)) == usual]
    if len(kept) < LEAST:
        return None
    split = [(tuple(claims[block][0].values()), tuple(claims[block][1].values())) for block in kept]
    nodes = level.nodes({holder: split})
    parts = [at for at, node in enumerate(nodes) if node.signature == -1]
    users = users_of(nodes)
    staying = [n for n, block in enumerate(kept) if block in stays]
    found = _proposed(level, nodes, users, [[at] for at in parts], staying)
    if found is None:
        return None
    numbers = tuple(inside.numbers[kept[n]] for n in found.numbers)
    return RepeatedBlocks(level, found.removal, inside.blocks, numbers, inside, holder)


def _claims(inside: RepeatedBlocks, block: int) -> tuple[dict[Any, int], dict[Any, int]]:
    """Return the inputs and outputs of a level that belong to a block, by what reads or makes them."""
    level, alignment, own = inside.level, inside.removal.alignment, inside.removal.own[block]
    inputs = {own[value]: at for at, value in enumerate(level.inputs) if value in own}
    outputs: dict[Any, int] = {}
    for at, value in enumerate(level.outputs):
        made = alignment.of_value.get(value)
        if made is not None and made[2] == block:
            outputs["made", *made[:2], sum(key[:3] == ("made", *made[:2]) for key in outputs)] = at
        elif value in own and made is None:
            outputs["kept", *own[value]] = at
    return dict(sorted(inputs.items())), dict(sorted(outputs.items(), key=lambda one: str(one[0])))


def _held_back(op: Operation[int], inside: RepeatedBlocks) -> set[int]:
    """Return blocks inside an operation that stay: those that do, and of a scan those that mix what they carry."""
    stays = set(inside.removal.stays)
    if op.name != "scan":
        return stays
    constants, carried = scan_sizes(op.eqn)
    for block in range(inside.removal.alignment.blocks):
        inputs, outputs = (set(one.values()) for one in _claims(inside, block))
        for n in range(carried):
            if (constants + n in inputs) != (n in outputs):
                stays.add(block)
    return stays


def without(found: RepeatedBlocks, gone: Collection[int]) -> KeptLevel | None:
    """Return a level without some of its blocks; None if what is left has no order.

    Args:
        found: the blocks.
        gone: numbers of blocks that are taken out, as ``removable`` has them.
    """
    level, rules, alignment = found.level, found.removal, found.removal.alignment
    here = {block for block, number in enumerate(found.numbers) if number in gone}
    held = without(found.inside, gone) if found.inside is not None else None
    if found.inside is not None and held is None:
        return None
    operands: dict[int, dict[int, int]] = {}
    results: dict[int, set[int]] = {}
    for at, node in enumerate(alignment.nodes):
        role = alignment.of_node.get(at)
        if role is not None and role[1] in here:
            continue
        results.setdefault(node.op, set()).update(node.outs)
        mine = operands.setdefault(node.op, {})
        for n, (position, value) in enumerate(zip(node.ins, node.inputs, strict=True)):
            chain = (role[0], n) if role is not None and (role[0], n) in rules.chains else None
            mine[position] = rules.instead(value, chain, here)
    outputs = tuple(at for at, value in enumerate(level.outputs) if not _belongs(rules, value, here))
    ops, holder = [], None
    for at, op in enumerate(level.ops):
        if at not in operands or (op.outputs and not results[at]):
            continue
        ins, outs = sorted(operands[at]), tuple(sorted(results[at]))
        if held is not None and at == found.holder:
            needed = _with_carried(op, held)
            ins = [one for one in ins if one in needed]
            if outs != held.outputs or tuple(ins) != needed:
                return None
            held = replace(held, inputs=needed)
        inputs = tuple(operands[at][position] for position in ins)
        ops.append(Operation(op.name, inputs, tuple(op.outputs[position] for position in outs), op.eqn))
        holder = ops[-1] if at == found.holder else holder
    ordered = _ordered(ops, {*level.inputs, *level.literals, *level.consts})
    if ordered is None:
        return None
    results_left = tuple(rules.instead(level.outputs[at], None, here) for at in outputs)
    left_ops = alive(ordered, results_left)
    read = {value for op in left_ops for value in op.inputs}.union(results_left)
    before = {value for op in level.ops for value in op.inputs} | set(level.outputs)
    inputs_left = tuple(at for at, value in enumerate(level.inputs) if value in read or value not in before)
    at_holder = next((n for n, op in enumerate(left_ops) if op is holder), -1)
    return KeptLevel(level, left_ops, inputs_left, outputs, results_left, held, at_holder)


def _ordered(ops: Sequence[Operation[int]], known: set[int]) -> list[Operation[int]] | None:
    """Return operations so that each comes after those that it reads, else in their order; None if there is no way.

    What a block reads after its neighbour has gone may have been written later than itself.

    Args:
        ops: the operations.
        known: values that no operation makes.
    """
    made, found = set(known), []
    waiting: dict[int, list[Operation[int]]] = {}
    for first in ops:
        ready = [first]
        while ready:
            op = ready.pop()
            missing = next((value for value in op.inputs if value not in made), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(op)
                continue
            found.append(op)
            made.update(op.outputs)
            ready.extend(one for value in op.outputs for one in reversed(waiting.pop(value, ())))
    return found if len(found) == len(ops) else None


def _with_carried(op: Operation[int], held: KeptLevel) -> tuple[int, ...]:
    """Return the inputs of a jaxpr that an operation holds; of a scan with all that it still carries."""
    if op.name != "scan":
        return held.inputs
    constants, carried = scan_sizes(op.eqn)
    return tuple(sorted({*held.inputs, *(constants + n for n in held.outputs if n < carried)}))


def _belongs(rules: BlockRemoval, value: int, gone: Collection[int]) -> bool:
    """Return whether a value is one of blocks that are taken out."""
    made = rules.alignment.of_value.get(value)
    if made is not None:
        return made[2] in gone and value not in rules.ends
    return any(value in rules.own[block] for block in gone)
