"""Controller: a program costs the same on 2 devices and on 65,536 (Pathways, sections 4.2, 4.3 and 4.6).

The notebook's training step, two stages on two islands, is traced, placed, lowered and scheduled for islands of 2,
2,048 and 65,536 devices that do not exist: a node is one node whatever its number of shards. The batch grows with the
devices, so that each holds the same. Only the pure controller is timed: a call, its completion, its release. No
devices, threads or drivers take part.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType

import pathways_nb as pw
from pathways_nb.bench.stopwatch import interleaved, ratio, spread
from pathways_nb.controller.controller_state import Dispatch
from pathways_nb.controller.events_and_instructions import Completed, Instruction, Launch, Released, Stored, Submitted
from pathways_nb.controller.resources import Resources
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.cost.jaxpr.splits import Split, bytes_on_device
from pathways_nb.examples import two_stages
from pathways_nb.plan.footprint import Sizes, footprint_of
from pathways_nb.plan.plan_lowering import lower

SHARDS, ROWS = (2, 2048, 65_536), 3
"""Number of shards of every node; rows of the batch on each device."""
ROUNDS, CALLS = 60, 5
"""Rounds, and calls in a round of parallel dispatch."""


def run() -> dict[str, Any]:
    """Return the sizes of graph, plan and messages, and the controller's time, for every number of shards."""
    figures: dict[str, float] = {}
    stories = {shards: Story(shards) for shards in SHARDS}
    for shards, story in stories.items():
        figures |= {f"{what}_{shards}": number for what, number in story.sizes().items()}
    seconds = interleaved({str(n): partial(_repeat, story.tell, CALLS) for n, story in stories.items()}, ROUNDS)
    each = {n: [s / CALLS for s in times] for n, times in seconds.items()}
    figures |= {f"controller_us_{n}": median(times) * 1e6 for n, times in each.items()}
    figures["controller_65536_over_2"] = ratio(each, "65536", "2")
    gangs = {n: Story(n, "sequential") for n in SHARDS}
    one_by_one = interleaved({str(n): partial(_repeat, story.tell, 1) for n, story in gangs.items()}, ROUNDS)
    figures["controller_sequential_65536_over_2"] = ratio(one_by_one, "65536", "2")
    placing = interleaved(
        {"2": partial(place, 2, 1), "65536": partial(place, 65_536, 1), "2048 of 32": partial(place, 32, 2048)}, 5
    )
    figures["place_us_2"] = median(placing["2"]) * 1e6
    figures["place_us_65536"] = median(placing["65536"]) * 1e6
    figures["place_us_each_2048_of_32"] = median(placing["2048 of 32"]) / 2048 * 1e6
    detail = [
        {"shards": n, "dispatch": dispatch} | {f"us, {k}": round(v) for k, v in spread([s * 1e6 for s in t]).items()}
        for dispatch, all_times in (("parallel", each), ("sequential", one_by_one))
        for n, t in all_times.items()
    ]
    return {"figures": figures, "detail": detail}


def place(size: int, count: int) -> None:
    """Place virtual slices on an island that they fill.

    Args:
        size: devices of each slice.
        count: number of slices.
    """
    Resources((size * count,)).place([pw.virtual_slice(size) for _ in range(count)])


def _repeat(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


class Story:
    """A training step on two islands, submitted to a controller again and again.

    Args:
        shards: devices of each island.
        dispatch: as for ``pw.attach``.
    """

    def __init__(self, shards: int, dispatch: Dispatch = "parallel"):
        step = two_stages.pipelined(pw.virtual_slice(shards), pw.virtual_slice(shards))
        params, state, tokens, _ = two_stages.start()
        batch = jax.ShapeDtypeStruct((len(tokens), ROWS * shards, tokens.shape[-1]), np.int32)
        call = step.signature((params, state, batch, batch), {})
        traced = step.trace(call, call.avals(), "cpu", _mesh)
        islands = Resources((shards, shards))
        self.graph = traced.graph
        self.plan = lower(traced.graph, islands.place(traced.places), traced.arguments, traced.places[0])
        avals = [traced.avals[slot.value] for slot in self.plan.slots]
        held = [bytes_on_device(aval, _batch_split(aval, shards), {"x": shards}) for aval in avals]
        self.footprint = footprint_of(self.plan, Sizes(tuple(held), {}, {}))
        peak = max(peak.bytes for peak in self.footprint.peaks(self.graph))
        self.machine = StateMachine(dispatch, devices=islands.islands, budgets=(peak, peak))
        self.result_bytes = tuple(traced.avals[self.plan.slots[slot].value].bytes for slot in self.plan.results)
        self.buffers, self.serials = itertools.count(), itertools.count()
        self.messages = 0
        leaves = tuple(next(self.buffers) for _ in traced.arguments)
        self.arguments = tuple(leaves[leaf] for leaf in self.plan.leaves)
        self._store(leaves)

    def _store(self, leaves: Sequence[int]) -> None:
        """Store the arguments at the places that need them first; every call sends what a second place needs."""
        brought = [self.plan.leaves[step.argument] for step in self.plan.steps if step.kind == "bring"]
        self.moved = tuple(i for i, leaf in enumerate(brought) if leaf in brought[:i])
        for leaf, buffer in enumerate(leaves):
            where = self.footprint.inputs[brought.index(leaf)] if leaf in brought else None
            self.machine.handle(Stored(buffer, "", 0, "an argument", where))

    def tell(self) -> list[Instruction]:
        """Return the controller's instructions for one call, from its submission to the release of its results."""
        run, now = next(self.serials), 0.0
        results = tuple(next(self.buffers) for _ in self.plan.results)
        call = Submitted(run, "", self.plan, self.arguments, results, self.result_bytes, self.footprint, self.moved)
        told = self.machine.handle(call, now)
        events = 2
        for instruction in told:  # the list grows in the loop
            if isinstance(instruction, Launch):
                done = Completed(run, instruction.island, instruction.start, instruction.stop, 1e-3)
                told += self.machine.handle(done, now)
                events += 1
        told += self.machine.handle(Released(results), now)
        self.messages = events + len(told)
        return told

    def sizes(self) -> dict[str, int]:
        """Return the sizes of graph and plan, and the number of events and instructions of one call."""
        self.tell()
        self.tell()  # the second call is counted: a first one may report more levels of memory
        edges = sum(1 for _ in self.graph.edges())
        return {
            "graph_nodes": len(self.graph.nodes),
            "graph_edges": edges,
            "plan_steps": len(self.plan.steps),
            "messages": self.messages,
        }


def _mesh(place: pw.VirtualSlice) -> AbstractMesh:
    """Return the mesh of a place without devices, which suffices to trace."""
    return AbstractMesh(place.shape, place.axes, axis_types=(AxisType.Auto,) * len(place.axes))


def _batch_split(aval: Any, shards: int) -> Split:
    """Return the layout of an array: axes with the batch are split, the others are not."""
    return tuple(("x",) if size == ROWS * shards else () for size in aval.shape)
