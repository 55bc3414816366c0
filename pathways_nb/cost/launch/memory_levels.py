"""What a device holds during a launch: bytes over time, by what they are for, from buffers and live ranges.

A live range counts instructions, each once, and a loop runs its instructions many times. So the level is computed at
each instruction, and an operation that begins anywhere in the launch looks its level up. Arguments and results have
their memory for the whole launch. A temporary value is *gathered* if an all-gather made it, an *activation* if the
forward pass made it and something after the begin of the backward pass reads it, a *gradient* if the backward pass made
it and the optimizer reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pathways_nb.cost.hlo.buffers import Buffers, BufferValue, LiveRange, LiveRanges
from pathways_nb.plan.memory_categories import ACTIVATIONS, ARGUMENTS, GATHERED, GRADIENTS, RESULTS, TEMPORARIES
from pathways_nb.trace.launch_ops import OpLabel, Ops

MOST_LEVELS = 4_000
"""Times at which levels are kept; a picture has fewer pixels."""


@dataclass(frozen=True, eq=False)
class MemoryLevels:
    """Bytes on a device over time.

    Args:
        times: when a level begins, in seconds since the launch began, rising; each holds until the next.
        end: of the last level.
        bytes: at each of ``times``, by category.
    """

    times: np.ndarray
    end: float
    bytes: Mapping[str, np.ndarray]

    @property
    def peak(self) -> int:
        """The most bytes at any time; what is lost between buffers is not in it."""
        return int(sum(self.bytes.values()).max())  # type: ignore[union-attr]  # there is at least one category


def levels_of(ops: Ops, buffers: Buffers, ranges: LiveRanges, backward: str) -> MemoryLevels | None:
    """Return what a device holds during a launch; None without buffers, ranges or operations.

    Args:
        ops: of the launch.
        buffers: sizes and uses of values.
        ranges: how long they live.
        backward: the instruction with which the backward pass begins; empty without one.
    """
    labels = {label.name: label for label in ops.labels if label.kind != "wait"}
    # (positions,) whether an instruction is an op of the queue of instructions, at whose begin the level is known.
    computes = np.array([labels[name].kind == "compute" if name in labels else False for name in ranges.sequence], bool)
    if not buffers.values or not computes.any():
        return None
    held = _by_position(labels, buffers, ranges, backward)
    fullest = _fullest(np.sum(list(held.values()), axis=0), computes)
    level = {name: one[fullest] for name, one in held.items()}
    # Of each position that computes, which of those it is.
    number = {ranges.sequence[at]: n for n, at in enumerate(np.flatnonzero(computes))}
    of_label = np.array([number.get(label.name, -1) if label.kind == "compute" else -1 for label in ops.labels])
    at = of_label[ops["label"]]
    times, at = ops["start"][at >= 0], at[at >= 0]
    # Of many times in a row, the one at which most is held stands for all.
    total = np.sum(list(level.values()), axis=0)[at]
    each = -(-len(times) // MOST_LEVELS)
    runs = np.arange(0, len(times), each)
    chosen = [first + int(total[first : first + each].argmax()) for first in runs.tolist()]
    times, at = times[runs], at[chosen]
    times = np.concatenate([[0.0], times[1:]])  # what is held at the first op is held from the begin on
    constant = {ARGUMENTS: buffers.bytes["arguments"], RESULTS: buffers.bytes["results"]}
    bytes = {name: np.full(len(times), always) for name, always in constant.items()}
    bytes |= {name: one[at] for name, one in level.items()}
    return MemoryLevels(times, float(ops["end"].max()), {name: one for name, one in bytes.items() if one.any()})


def _fullest(total: np.ndarray, computes: np.ndarray) -> np.ndarray:
    """Return where most is held of all instructions from behind one op that computes up to the next, for each such op.

    Args:
        total: (positions,) bytes at each instruction.
        computes: (positions,) whether it is such an op.
    """
    ends = np.flatnonzero(computes)
    begins = np.concatenate([[0], ends[:-1] + 1])
    # One position for all categories: memory that goes over from one to another in between is held once.
    return np.array([low + int(total[low : high + 1].argmax()) for low, high in zip(begins, ends, strict=True)])


def _by_position(
    labels: Mapping[str, OpLabel], buffers: Buffers, ranges: LiveRanges, backward: str
) -> dict[str, np.ndarray]:
    """Return the bytes of temporary values at each position of the sequence, by category."""
    made = [labels.get(name) for name in ranges.sequence]
    phases = ["" if one is None else one.phase for one in made]
    count = len(ranges.sequence)
    begin_of_backward = ranges.sequence.index(backward) if backward in ranges.sequence else count
    temporary = {(one.name, one.part): one for one in buffers.values if one.use == "temporaries"}
    # Values that share a place are one value under several names, so the place is held once.
    places: dict[tuple[int, int], list[tuple[LiveRange, BufferValue]]] = {}
    for one in ranges.ranges:
        if (value := temporary.get((one.name, one.part))) is not None:
            places.setdefault((value.allocation, value.offset), []).append((one, value))
    change = {name: np.zeros(count + 2, np.int64) for name in (GATHERED, ACTIVATIONS, GRADIENTS, TEMPORARIES)}
    for held in places.values():
        free = 0
        held.sort(key=lambda pair: (pair[0].begin, -pair[0].end))
        for chain in _chains(held, labels):
            category = _category([one for one, _ in chain], labels, phases, begin_of_backward)
            for one, value in chain:
                begin, end = max(one.begin, free), min(one.end, count) + 1
                if begin < end:
                    change[category][begin] += value.bytes
                    change[category][end] -= value.bytes
                    free = end
    return {name: np.cumsum(one)[:count] for name, one in change.items()}


def _chains(
    held: Sequence[tuple[LiveRange, BufferValue]], labels: Mapping[str, OpLabel]
) -> list[list[tuple[LiveRange, BufferValue]]]:
    """Return the values of one place in groups that are one value: what a loop takes over, fills pass by pass, returns.

    Args:
        held: in the order of their begin.
        labels: of ops; loops, their parameters and results have none.
    """
    found: list[list[tuple[LiveRange, BufferValue]]] = []
    end = -1  # of the last chain
    for one, value in held:
        alike = bool(found) and value.bytes == found[-1][-1][1].bytes
        # An op that begins where another ends may use its memory again for something else; what loops take over and
        # return is no op, and what fills an array in place goes on with it.
        ops = [labels.get(name) for name in (found[-1][-1][0].name, one.name)] if found else []
        goes_on = any(op is None or op.source.endswith("dynamic_update_slice") for op in ops[-1:]) or None in ops
        if alike and (one.begin < end or (one.begin <= end + 1 and goes_on)):
            found[-1].append((one, value))
            end = max(end, one.end)
        else:
            found.append([(one, value)])
            end = one.end
    return found


def _category(chain: Sequence[LiveRange], labels: Mapping[str, OpLabel], phases: Sequence[str], backward: int) -> str:
    """Return what a temporary value is for.

    Args:
        chain: how long it lives, under each of its names.
        labels: of ops.
        phases: of the instructions.
        backward: position at which the backward pass begins.
    """
    made = [label for one in chain if (label := labels.get(one.name)) is not None]
    end = max(one.end for one in chain)
    if made and made[0].work.startswith("all-gather"):
        return GATHERED
    if any(label.phase == "forward" for label in made) and chain[0].begin < backward <= end:
        return ACTIVATIONS
    last = phases[min(end, len(phases) - 1)]
    return GRADIENTS if any(label.phase == "backward" for label in made) and last == "optimizer" else TEMPORARIES
