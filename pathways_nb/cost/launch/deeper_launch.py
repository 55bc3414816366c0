"""A launch of many blocks, from launches of a few: its seconds, its memory, and where in its time the others are.

A device runs the forward pass of all blocks, then their backward passes in the opposite order, and the optimizer. So
what is not compiled is in two places: after the first blocks of the forward pass, and before the last ones of the
backward pass. There the ops have one that stands for the other blocks, their exchanges included. Of blocks in a loop
over microbatches, which run once a microbatch, the two ops stand for all microbatches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pathways_nb.cost.hlo.buffers import Buffers, LiveRanges
from pathways_nb.cost.launch.block_extrapolation import HeldBuffers, extended, extended_bytes
from pathways_nb.cost.launch.launch_memory import LaunchMemory
from pathways_nb.cost.launch.launch_timing import LaunchSeconds
from pathways_nb.cost.launch.opened_launch import OpenedLaunch
from pathways_nb.trace.launch_ops import BACKWARD, OP_STORED, OpLabel, Ops, Phase
from pathways_nb.util.words import counted


def deeper(
    launches: Sequence[OpenedLaunch],
    buffers: Sequence[tuple[Buffers, LiveRanges]],
    depths: Sequence[int],
    blocks: int,
) -> OpenedLaunch:
    """Return a launch of many blocks.

    Args:
        launches: of a few blocks each, opened.
        buffers: of each, with how long each lives.
        depths: their blocks, ascending.
        blocks: of the whole launch.
    """
    last = launches[-1]

    def along(values: Sequence[float]) -> float:
        return max(extended(values, depths, blocks), values[-1])

    each = [one.seconds for one in launches]
    seconds = LaunchSeconds(
        along([one.exposed for one in each]), along([one.ordered for one in each]), along([one.hidden for one in each]),
        {name: along([one.busy[name] for one in each]) for name in each[-1].busy},
    )  # fmt: skip
    compiled = " and ".join(map(str, depths))
    said = f"{blocks} blocks by programs of {compiled}: what each adds follows from their difference"
    what = OpLabel(f"{counted(blocks - depths[-1], 'more block')}", "", "compute", "", "", 0, work=said)
    memory = _memory(launches, buffers, depths, blocks)
    ops = _with_others([one.ops for one in launches[-2:]], depths, blocks, seconds.ordered - last.seconds.ordered, what)
    lines = [dict(one.exposed) for one in launches]
    exposed = [(line, along([one.get(line, 0.0) for one in lines])) for line in lines[-1]]
    exposed.sort(key=lambda one: -one[1])
    return OpenedLaunch(ops, seconds, memory, f"{last.basis}; {said}", last.notes, last.backward, tuple(exposed))


def _memory(
    launches: Sequence[OpenedLaunch],
    buffers: Sequence[tuple[Buffers, LiveRanges]],
    depths: Sequence[int],
    blocks: int,
) -> LaunchMemory | None:
    """Return the memory of all blocks; None if the compiler said nothing of it."""
    known = [one.memory for one in launches if one.memory is not None]
    if len(known) < len(launches):
        return None
    if all(one.values and live.ranges for one, live in buffers):
        held = [HeldBuffers(*one, launch.ops, launch.backward) for one, launch in zip(buffers, launches, strict=True)]
        peak = round(extended_bytes(held, depths, blocks))
    else:
        peak = round(extended([one.peak for one in known], depths, blocks))
    arguments, results = (
        round(extended([getattr(one, name) for one in known], depths, blocks)) for name in ("arguments", "results")
    )
    # The curve of a few blocks is not that of all.
    rest = max(0, peak - arguments - results)
    return replace(known[-1], peak=peak, arguments=arguments, results=results, temporaries=rest, levels=None)


def _with_others(ops: Sequence[Ops], depths: Sequence[int], blocks: int, more: float, what: OpLabel) -> Ops:
    """Return the ops of the deepest launch, with room for the other blocks.

    Args:
        ops: of the two deepest launches.
        depths: blocks of all launches.
        blocks: of the whole.
        more: seconds that the whole takes longer than the deepest.
        what: stands for the other blocks.
    """
    few, many = ops
    ahead = _rows(few, "forward"), _rows(many, "forward")
    behind = _rows(few, *BACKWARD), _rows(many, *BACKWARD)
    if not all(map(len, (*ahead, *behind))):
        return _apart(many, [(_first_difference(few, many, _rows(few), _rows(many)), more, "")], what)
    until = [float(one["start"][rows[0]]) for one, rows in zip(ops, behind, strict=True)]
    forward = min(max(0.0, extended(until, depths[-2:], blocks) - until[-1]), more)
    gaps: list[tuple[float, float, Phase]] = [
        (_first_difference(few, many, *ahead), forward, "forward"),
        (_last_difference(few, many, *behind), more - forward, "backward"),
    ]
    return _apart(many, gaps, what)


def _rows(ops: Ops, *phases: str) -> np.ndarray:
    """Return positions of the ops that compute, in the order of time: of some phases, or all."""
    mask = ops["kind"] == "compute"
    return np.flatnonzero(mask & np.isin(ops["phase"].astype(str), phases) if phases else mask)


def _first_difference(few: Ops, many: Ops, some: np.ndarray, all_: np.ndarray) -> float:
    """Return when the deeper of two launches begins to go on otherwise."""
    same = _alike(few, many, some, all_)
    return float(many["end"][all_[same - 1]]) if same else 0.0


def _last_difference(few: Ops, many: Ops, some: np.ndarray, all_: np.ndarray) -> float:
    """Return when what both launches end with begins in the deeper one."""
    same = _alike(few, many, some[::-1], all_[::-1])
    return float(many["start"][all_[-same]] if same else many["end"][all_[-1]])


def _alike(few: Ops, many: Ops, some: np.ndarray, all_: np.ndarray) -> int:
    """Return how many ops are alike from the first on: of the same operation and line of the program."""
    one, other = (
        [(ops.labels[label].source, ops.labels[label].line) for label in ops.stored("label")[rows].tolist()]
        for ops, rows in ((few, some), (many, all_))
    )
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _apart(ops: Ops, gaps: Sequence[tuple[float, float, Phase]], what: OpLabel) -> Ops:
    """Return ops with gaps, each with an op of its own.

    Args:
        ops: of a launch.
        gaps: for each when it begins, its seconds, and its phase.
        what: label of the ops in gaps.
    """
    stored = {name: ops.stored(name).copy() for name in OP_STORED}
    start, labels = ops.stored("start"), list(ops.labels)
    rows: list[tuple[int, float, float]] = []
    before = 0.0
    for at, seconds, phase in sorted(gaps):
        if seconds <= 0:
            continue
        later = start >= at  # what is under way then goes on beside the other blocks
        stored["start"], stored["end"] = stored["start"] + seconds * later, stored["end"] + seconds * later
        rows.append((len(labels), at + before, at + before + seconds))
        labels.append(what._replace(phase=phase))
        before += seconds
    added = {"label": [row[0] for row in rows], "start": [row[1] for row in rows], "end": [row[2] for row in rows]}
    for name, dtype in OP_STORED.items():
        stored[name] = np.concatenate([stored[name], np.array(added.get(name, [0] * len(rows)), dtype)])
    order = np.argsort(stored["start"], kind="stable")
    return Ops(labels, {name: column[order] for name, column in stored.items()})
