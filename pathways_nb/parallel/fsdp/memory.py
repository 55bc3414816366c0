"""Bytes on one device over the time of a step, by what they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pathways_nb.parallel.fsdp.operation_costs import OperationCosts
from pathways_nb.parallel.fsdp.step_graph import CollectiveOp, StepGraph
from pathways_nb.parallel.fsdp.stream_tasks import TimedStreams

Category = Literal["parameters", "gathered", "gradients", "optimizer", "activations", "temporaries"]
CATEGORIES: tuple[Category, ...] = ("parameters", "optimizer", "gathered", "gradients", "activations", "temporaries")
"""In the order in which they are stacked."""


@dataclass(frozen=True, eq=False)
class MemoryCurve:
    """Bytes on one device over time.

    Args:
        times: ticks at which something changed, rising, (times,).
        bytes: by category, the bytes from each time to the next, (times,).
    """

    times: np.ndarray
    bytes: dict[Category, np.ndarray]

    @property
    def total(self) -> np.ndarray:
        """Bytes of all categories."""
        return np.sum(list(self.bytes.values()), axis=0)

    @property
    def peak(self) -> int:
        """The most bytes at any time."""
        return int(self.total.max(initial=0))

    def at_peak(self) -> dict[Category, int]:
        """Return the bytes of each category when the device holds most."""
        at = int(self.total.argmax())
        return {category: int(held[at]) for category, held in self.bytes.items()}

    @classmethod
    def of(cls, graph: StepGraph, timed: TimedStreams, costs: OperationCosts, state_bytes: int = 0) -> MemoryCurve:
        """Return the memory of a step.

        An array lives from the beginning of the operation that makes it to the end of the last one that reads it. New
        parameters and state live from the beginning of the optimizer's update on, beside those of which they do not
        take over the memory.

        Args:
            graph: the step.
            timed: when each operation begins and ends.
            costs: of the operations; they say which arrays are views, and which are never in memory.
            state_bytes: of the optimizer's state.
        """
        category = categories(graph)
        born, died = dict.fromkeys(graph.flat.inputs, 0), dict[int, int]()  # ticks, by value
        end = timed.end
        homes: dict[int, int] = {}  # by view, the value in whose memory it lies: it lives as long as its last view
        for op, (start, stop) in zip(graph.ops, timed.times, strict=True):
            for value in op.outputs:
                if value in costs.views:
                    seen = op.inputs[costs.views[value]]
                    homes[value] = homes.get(seen, seen)
                elif value not in costs.fused:  # a fused value is never in memory
                    born[value] = start
            for value in (*op.inputs, *op.outputs):
                home = homes.get(value, value)
                died[home] = max(died.get(home, 0), stop)
        for value in (*graph.flat.inputs, *graph.flat.outputs):  # whoever calls the step holds them to the end
            died[value] = end
        ticks = np.array([[born[v], died.get(v, born[v])] for v in born], np.int64).reshape(-1, 2)  # (values, 2)
        sizes = np.array([costs.bytes(graph, v) for v in born], np.int64)  # (values,) bytes
        kinds = np.array([CATEGORIES.index(category.get(v, "activations")) for v in born])  # (values,)
        at = np.unique([*ticks.reshape(-1), timed.updates, end])  # (times,) ticks
        found: dict[Category, np.ndarray] = {}
        for number, name in enumerate(CATEGORIES):
            chosen = kinds == number
            change = np.zeros(len(at) + 1, np.int64)  # bytes that are added at each time
            np.add.at(change, np.searchsorted(at, ticks[chosen, 0]), sizes[chosen])
            np.add.at(change, np.searchsorted(at, ticks[chosen, 1]), -sizes[chosen])
            found[name] = np.cumsum(change)[: len(at)]
        found["optimizer"] = found["optimizer"] + state_bytes
        if costs.update is not None:
            after = at >= timed.updates
            found["parameters"] = found["parameters"] + after * costs.update.parameter_bytes
            found["optimizer"] = found["optimizer"] + after * costs.update.state_bytes
        return cls(at, found)


def categories(graph: StepGraph) -> dict[int, Category]:
    """Return the category of values; those that are not in it are activations.

    Views and conversions of a gathered parameter count as gathered; what only the backward pass reads and makes
    between activations and gradients of parameters counts as temporary.
    """
    found: dict[int, Category] = dict.fromkeys(graph.shards, "parameters")
    shards = set(graph.shards)
    for op in graph.ops:
        if isinstance(op, CollectiveOp) and op.is_gather:
            found.update(dict.fromkeys(op.outputs, "gathered"))
        elif isinstance(op, CollectiveOp) or op.name == "pack":
            # A pack of shards is on its way to a gather, one of anything else to a reduction.
            gathers = all(value in shards or found.get(value) == "parameters" for value in op.inputs)
            found.update(dict.fromkeys(op.outputs, "gathered" if gathers else "gradients"))
        elif op.name == "unpack" and found.get(op.inputs[0]) in ("gathered", "gradients"):
            found.update(dict.fromkeys(op.outputs, found[op.inputs[0]]))
        elif op.name == "convert" and op.inputs[0] in shards:
            found.update(dict.fromkeys(op.outputs, "parameters"))
        elif op in graph.backward:
            found.update(dict.fromkeys(op.outputs, "temporaries"))
    # Last, because what a reduction sends was made by an ordinary operation of the backward pass.
    for op in graph.collectives:
        if not op.is_gather:
            found.update(dict.fromkeys(op.inputs, "gradients"))
    found.update(dict.fromkeys(graph.gradients.values(), "gradients"))
    return found
