"""The graph of a compiled step: its instructions folded by module, line, phase and kind, and what reads what.

The module of an instruction is the scope that its framework or the user named (Flax Linen, ``jax.named_scope``). Where
there is none, or only the classes of a library (``eqx.nn.Linear``), it is the chain of the user's functions that called
it. Blocks that differ in their number alone, ``layers_0`` to ``layers_31``, are one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pathways_nb.adopt.collective_table import exposed_shares
from pathways_nb.adopt.name_stacks import operation_of, scope_of
from pathways_nb.adopt.scheduled_depths import ScheduledDepths
from pathways_nb.cost.hlo.data_flow import reads_in
from pathways_nb.cost.hlo.hlo_schedule import LaunchAction
from pathways_nb.cost.hlo.hlo_text import HloModule
from pathways_nb.cost.launch.launch_timing import Price
from pathways_nb.cost.launch.unrolled_ops import KIND_OF_QUEUE, WAIT
from pathways_nb.plan.source_texts import SourceTexts, texts_of
from pathways_nb.trace.launch_ops import OpKind, Ops, Phase
from pathways_nb.trace.op_graph import REPEATED, GraphEdge, GraphOp, OpGraph

OPTIMIZER, UNNAMED = "optimizer", "no scope"
"""Modules of what is in none: the optimizer's operations, and those of which nobody says whose they are."""
_FEWEST = 3
"""Blocks that differ in their number alone from which on they are one: two layers are often different ones."""
_NUMBERED = re.compile(r"(.*?)[_.\[]?(\d+)\]?")


class _Key(NamedTuple):
    """What operations have in common that are one in the graph; fields as in ``GraphOp``."""

    path: tuple[str, ...]
    name: str
    kind: OpKind
    phase: Phase
    line: str


class _Compiled(NamedTuple):
    """The operations of one compiled program.

    Args:
        key_of: by the name of an instruction.
        times: executions in a step, by the name.
        totals: by key, executions, seconds, and exposed seconds.
        reads: by the names of what makes values and what reads them, their bytes.
    """

    key_of: dict[str, _Key]
    times: dict[str, int]
    totals: dict[_Key, tuple[float, float, float]]
    reads: dict[tuple[str, str], float]


def graph_of(programs: ScheduledDepths, step: str, lines: Sequence[str] = ()) -> tuple[OpGraph, dict[str, int]]:
    """Return the graph of a step, and for each instruction of the deepest program its ``Op.node``.

    Args:
        programs: that it was compiled as.
        step: name of the step's function: what called it is nobody's module.
        lines: whose texts are kept besides those of the operations.
    """
    every = [[(action, times) for action, times in schedule.runs() if times] for schedule in programs.schedules]
    paths = {_path(action, step) for action, _ in every[-1]}
    folded = _folded(paths, programs.depths[-1], programs.blocks)
    each = [
        _compiled(module, actions, known, programs.price, step, folded)
        for module, actions, known in zip(programs.modules, every, programs.ops, strict=True)
    ]
    last = each[-1]
    first = _first_starts(programs.ops[-1], last.key_of)
    keys = sorted(last.totals, key=lambda key: first.get(key, np.inf))
    made, factors = [], []
    for key in keys:
        count, seconds, exposed = programs.sums([one.totals.get(key, (0.0, 0.0, 0.0)) for one in each])
        own = last.totals[key][0]
        factors.append(count / own)
        made.append(GraphOp(*key, count, seconds, min(exposed, seconds), in_others=count > own))
    position = {key: at for at, key in enumerate(keys)}
    edges: dict[tuple[int, int], float] = {}
    for (maker, reader), size in last.reads.items():
        pair = position[last.key_of[maker]], position[last.key_of[reader]]
        if pair[0] != pair[1]:
            edges[pair] = edges.get(pair, 0.0) + size * last.times[reader] * factors[pair[1]]
    texts = _texts(programs.modules[-1], [*(one.line for one in made), *lines])
    found = OpGraph(tuple(made), tuple(GraphEdge(*pair, size) for pair, size in edges.items()), texts)
    return found, {name: position[key] + 1 for name, key in last.key_of.items()}


def numbered(ops: Ops, graph: OpGraph, node_of: Mapping[str, int]) -> Ops:
    """Return the ops of a launch with the numbers of their operations in its graph.

    Args:
        ops: of the launch.
        graph: of the launch.
        node_of: by the name of an instruction, as ``graph_of`` returns it.
    """
    # What is no instruction stands for the blocks that were not compiled.
    labels = [one._replace(node=node_of.get(one.name.removeprefix(WAIT), graph.others)) for one in ops.labels]
    return Ops(labels, ops.parts()[1], ops.note)


def _compiled(
    module: HloModule,
    actions: Sequence[tuple[LaunchAction, int]],
    ops: Ops,
    price: Price,
    step: str,
    folded: Mapping[object, str],
) -> _Compiled:
    """Return the operations of one compiled program.

    Args:
        module: the program.
        actions: that run, and how often.
        ops: of the program.
        price: seconds of an action.
        step: name of the step's function.
        folded: names of repeated blocks; see ``_folded``.
    """
    shares, timed = exposed_shares(ops), {label.name for label in ops.labels}
    ran = [(action, times) for action, times in actions if action.name in timed and action.role != "done"]
    found = _Compiled({}, {}, {}, reads_in(module, [action.name for action, _ in ran]))
    paths = _with_neighbours({action.name: _path(action, step) for action, _ in ran}, found.reads)
    for action, times in ran:
        kind = KIND_OF_QUEUE[action.queue]
        name = action.exchange.kind if action.exchange else operation_of(action.source, action.name)
        key = _Key(_in_blocks(paths[action.name], folded), name, kind, action.phase, action.line)
        found.key_of[action.name] = key
        found.times[action.name] = found.times.get(action.name, 0) + times
        took = times * price(action)
        # Computation has no share of its own: nothing is above it that could hide it.
        bare = took * shares.get(action.name, 1.0) if kind != "compute" else 0.0
        count, seconds, exposed = found.totals.get(key, (0.0, 0.0, 0.0))
        found.totals[key] = count + times, seconds + took, exposed + bare
    return found


def _with_neighbours(
    paths: Mapping[str, tuple[str, ...]], reads: Iterable[tuple[str, str]]
) -> dict[str, tuple[str, ...]]:
    """Return the modules of instructions; what has no scope is where its values are read, else where they are made.

    Args:
        paths: by the name of an instruction.
        reads: names of what makes values and what reads them.
    """
    found = dict(paths)
    near: dict[str, list[str]] = {}
    for maker, reader in reads:
        near.setdefault(maker, []).insert(0, reader)
        near.setdefault(reader, []).append(maker)
    unnamed = [name for name, path in found.items() if path == (UNNAMED,)]
    # The other way round, since what reads values stands behind what makes them.
    for name in reversed(unnamed):
        others = (found[other] for other in near.get(name, ()))
        found[name] = next((path for path in others if path not in ((), (UNNAMED,))), (UNNAMED,))
    return found


def _path(action: LaunchAction, step: str) -> tuple[str, ...]:
    """Return the modules of an action, the outermost first."""
    scope = tuple(part for part in scope_of(action.source).split("/") if part)
    if any("." not in part for part in scope):
        return scope
    called = [name.rpartition("<locals>.")[2].removesuffix(".__call__") for name in reversed(action.functions)]
    # What called the step is not part of it. A derivative rule has the frames of its function twice.
    inside = called[len(called) - called[::-1].index(step) :] if step in called else []
    path = *inside, *scope
    if path:
        return path
    if action.phase == "optimizer":
        return (OPTIMIZER,)
    return () if action.line else (UNNAMED,)


def _folded(paths: set[tuple[str, ...]], depth: int, blocks: int) -> dict[object, str]:
    """Return the names of repeated blocks, by the path that leads to them and their name without its number.

    Args:
        paths: all modules.
        depth: blocks that were compiled.
        blocks: of the step.
    """
    found: dict[object, str] = {}
    for length in range(1, max(map(len, paths), default=0) + 1):
        numbers: dict[tuple[tuple[str, ...], str], set[str]] = {}
        for path in paths:
            if len(path) >= length and (said := _NUMBERED.fullmatch(path[length - 1])):
                before = _in_blocks(path[: length - 1], found)
                numbers.setdefault((before, said[1]), set()).add(said[2])
        for key, those in numbers.items():
            if len(those) >= _FEWEST:
                whole = len(those) * blocks // depth if len(those) % depth == 0 else len(those)
                found[key] = f"{key[1]}{REPEATED}{whole}".strip()
    return found


def _in_blocks(path: Sequence[str], folded: Mapping[object, str]) -> tuple[str, ...]:
    """Return a path with repeated blocks as one."""
    made: list[str] = []
    for part in path:
        said = _NUMBERED.fullmatch(part)
        made.append(folded.get((tuple(made), said[1]), part) if said else part)
    return tuple(made)


def _first_starts(ops: Ops, key_of: Mapping[str, _Key]) -> dict[_Key, float]:
    """Return when the first of each key's operations begins."""
    starts = np.full(len(ops.labels), np.inf)
    np.minimum.at(starts, ops["label"], ops["start"])
    found: dict[_Key, float] = {}
    for label, start in zip(ops.labels, starts.tolist(), strict=True):
        if (key := key_of.get(label.name)) is not None:
            found[key] = min(found.get(key, np.inf), start)
    return found


def _texts(module: HloModule, lines: Sequence[str]) -> SourceTexts:
    """Return the texts of lines that a module names."""
    tables = module.sources
    places = ((tables.files.get(file, ""), line) for file, line, _ in tables.locations.values())
    return texts_of(places, filter(None, lines))
