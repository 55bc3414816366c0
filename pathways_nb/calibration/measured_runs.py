"""Chains of small computations through the attached controller, on all islands at the same time, and their seconds.

Nothing is measured outside the controller: with its launch, its watcher and busy neighbours, a node takes the time here
that it takes in a program. Each measurement follows another run of the same program, as a step in a training loop does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter as clock
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import PartitionSpec

from pathways_nb.calibration.kernels import AXIS, Kernel
from pathways_nb.plan.virtual_slice import VirtualSlice, virtual_slice
from pathways_nb.program.computation import Computation, shard_map
from pathways_nb.session.calls.client import put, record, wait
from pathways_nb.session.calls.program import program
from pathways_nb.session.session import Session

_SPLIT = PartitionSpec(AXIS)
Start = Callable[[], Any]
"""A function that starts a program and returns its futures."""


class StageSeconds(NamedTuple):
    """Seconds of one program by stage; see ``samples.Chain``."""

    total: float
    call: float
    sent: float


class Bench:
    """Chains on the islands of one controller.

    Args:
        controller: the current one.
    """

    def __init__(self, controller: Session):
        self.controller = controller
        self.islands, self.devices = len(controller.islands), min(controller.islands)
        self.places = self.on(self.devices)

    def on(self, devices: int) -> list[VirtualSlice]:
        """Return a place of so many devices on each island."""
        return [virtual_slice(devices, axes=(AXIS,), island=island) for island in range(self.islands)]

    def chains(self, kernel: Kernel, places: Sequence[VirtualSlice], nodes: int) -> Start:
        """Return a program of a chain of the kernel on each place.

        Args:
            kernel: of each node.
            places: one for each chain.
            nodes: length of a chain.
        """
        computations = [_computation(kernel, place) for place in places]
        constants = len(kernel.arrays) - 1

        def body(*arrays: Any) -> list[Any]:
            # Arguments are flat: of each place the state, then the constants.
            chains = (arrays[i : i + constants + 1] for i in range(0, len(arrays), constants + 1))
            return [_chained(node, nodes, *chain) for node, chain in zip(computations, chains, strict=True)]

        return _ready(body, [_placed(array, place) for place in places for array in kernel.arrays])

    def from_host(self, kernel: Kernel) -> Start:
        """Return a program that brings an array from the host to each place; its kernel reads hardly any of it."""
        computations = [_computation(kernel, place) for place in self.places]

        def body(*arrays: Any) -> list[Any]:
            return [node(array) for node, array in zip(computations, arrays, strict=True)]

        # Arrays of NumPy, not placed ones: each call brings them anew.
        return _ready(body, [_wide(kernel.arrays[0], self.devices) for _ in self.places])

    def between_islands(self, kernel: Kernel, nodes: int) -> Start:
        """Return a chain of the kernel that changes between the first two islands at each node.

        Args:
            kernel: of each node.
            nodes: length of the chain.
        """
        computations = [_computation(kernel, place) for place in self.places[:2]]

        def body(state: Any) -> Any:
            for number in range(nodes):
                state = computations[(number + 1) % 2](state)
            return state

        return _ready(body, [_placed(kernel.arrays[0], self.places[0])])


def seconds_of(start: Start) -> float:
    """Return the seconds from a call until the client knows of its end, right after another, as in a training loop."""
    wait(start())  # caches and allocators are then as in the middle of a loop
    began = clock()
    wait(start())
    return clock() - began


def stages_of(start: Start) -> StageSeconds:
    """Return the seconds of each stage of a program, right after another."""
    wait(start())
    with record(name="calibration") as run:
        called = clock()
        futures = start()
        returned = clock()
        wait(futures)
        known = clock()
    found = run.events.of_kind("enqueue")
    # (islands,) when each island's host began to enqueue; the last one ends the sending.
    began = [found["start"][found["island"] == island].min() for island in np.unique(found["island"])]
    # Events count from the beginning of the record, the clock does not.
    return StageSeconds(known - called, returned - called, max(began) + run.record.origin - returned)


def _chained(node: Computation, nodes: int, state: Any, *constants: Any) -> Any:
    """Return the state after so many nodes."""
    for _ in range(nodes):
        state = node(state, *constants)
    return state


def _computation(kernel: Kernel, place: VirtualSlice) -> Computation:
    """Return a computation of the kernel, named after its class so that records show it."""

    def node(*arrays: Any) -> Any:
        return kernel.repeated(*arrays)

    node.__name__ = kernel.kind
    specs = (_SPLIT,) * len(kernel.arrays)  # the result of an all-reduce varies over fewer axes than its state
    return shard_map(node, on=place, in_specs=specs, out_specs=_SPLIT, check_vma=False)


def _wide(array: Any, devices: int) -> Any:
    """Return as many copies of an array as there are devices, one after another."""
    return np.concatenate([array] * devices)


def _placed(array: Any, place: VirtualSlice) -> Any:
    """Return an array on a place, with one copy for each device."""
    return put(_wide(array, place.size), on=place, shardings=_SPLIT)


def _ready(body: Callable[..., Any], arrays: list[Any]) -> Start:
    """Return a compiled program, which has run once."""
    made = program(body, name="calibration")

    def start() -> Any:
        return made(*arrays)

    # The first run compiles, and is measured by nobody.
    wait(start())
    return start
