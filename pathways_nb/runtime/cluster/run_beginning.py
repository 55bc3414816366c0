"""What hosts are told of a run with its first range: how its arguments reach them, and which of its steps must fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pathways_nb.runtime import abstract_places
from pathways_nb.runtime.cluster.host_island import HostIsland
from pathways_nb.runtime.cluster.remote_array import RemoteArray
from pathways_nb.runtime.entries import Entry
from pathways_nb.runtime.faults import Fault, InjectedFault
from pathways_nb.runtime.hosts.crossings import key_impl, numbers
from pathways_nb.runtime.hosts.host_run import plain
from pathways_nb.runtime.hosts.messages import Argument, Call, Coming, Failed, Given, Held, Send
from pathways_nb.runtime.hosts.portable_plan import located
from pathways_nb.runtime.lowering.host_steps import HOST
from pathways_nb.runtime.lowering.pieces import Located
from pathways_nb.runtime.run_state import RunState


@dataclass(frozen=True, slots=True)
class Beginning:
    """What hosts are told of a run with its first range.

    Args:
        plan: digest of its plan.
        generations: the life of each island for which the run was compiled.
        calls: for each island, the message to each of its hosts.
        homes: the island of each of its results, by logical buffer.
    """

    plan: str
    generations: tuple[int, ...]
    calls: dict[int, list[Call]]
    homes: dict[int, int]


class BufferEntry(NamedTuple):
    """A logical buffer, and what this process holds of it."""

    buffer: int
    entry: Entry


def beginning_of(
    run: RunState,
    plan: str,
    arguments: Sequence[BufferEntry],
    islands: Sequence[HostIsland],
    faults: Sequence[Fault],
    post: Callable[[int, Send], None],
) -> Beginning:
    """Decide how each argument of a run reaches its islands, and have sent what other islands hold.

    Args:
        run: the run.
        plan: digest of its plan.
        arguments: of the run.
        islands: of the cluster.
        faults: that are injected.
        post: sends a message to the hosts of an island.

    Returns:
        What hosts are told.
    """
    compiled = run.compiled_plan
    reached: dict[int, list[list[Argument]]] = {
        island: [[None] * len(compiled.brings) for _ in islands[island].links] for island in compiled.plan.orders
    }
    for position, step in enumerate(compiled.brings):
        island = compiled.plan.steps[step].island
        found = _reach(run, position, arguments[compiled.brought[position]], islands, post)
        for host, one in zip(reached[island], found, strict=True):
            host[position] = one
    generations, struck = tuple(island.generation for island in islands), _struck(run, faults)
    calls = {
        island: [
            Call(run.serial, plan, run.client, tuple(mine), tuple(run.buffers), generations, struck) for mine in hosts
        ]
        for island, hosts in reached.items()
    }
    homes = {b: located(compiled, s).where.island for b, s in zip(run.buffers, compiled.plan.results, strict=True)}
    return Beginning(plan, generations, calls, homes)


def sources_of(calls: Mapping[int, Sequence[Call]]) -> dict[tuple[int, int], int]:
    """Return, by island and position among the plan's brings, the island that sends the argument there."""
    return {
        (island, position): argument.source.where.island
        for island, hosts in calls.items()
        for position, argument in enumerate(hosts[0].arguments)
        if isinstance(argument, Coming)
    }


def given_to_each(value: Any, target: Located, shape: tuple[int, ...], island: HostIsland) -> list[Given]:
    """Return for each host of an island the ranges of a value from this process that its devices need."""
    shards, impl = target.shards(shape), key_impl(value)
    values = numbers(value) if hasattr(value, "dtype") else np.asarray(value)
    boxes: list[list[Any]] = [[] for _ in island.links]
    for at in range(target.where.count):
        boxes[(target.where.first + at) // island.per_host].append(shards.box(at))
    return [_given(mine, values, impl) for mine in boxes]


def _reach(
    run: RunState,
    position: int,
    argument: BufferEntry,
    islands: Sequence[HostIsland],
    post: Callable[[int, Send], None],
) -> Sequence[Argument]:
    """Return for each host of an island how the argument of the bring at ``position`` reaches it."""
    compiled, entry = run.compiled_plan, argument.entry
    step = compiled.brings[position]
    slot = compiled.plan.steps[step].outputs[0]
    shape = compiled.plan.graph.values[compiled.plan.slots[slot].value].shape
    target, where = located(compiled, slot), entry.placement
    island = islands[target.where.island]
    if entry.error is not None:
        return [Failed(plain(entry.error))] * len(island.links)
    if where is None:
        value = entry.array.host_value() if isinstance(entry.array, RemoteArray) else entry.array
        return given_to_each(value, target, shape, island)
    lies_there = compiled.targets[position] is not HOST and abstract_places.is_at(entry, compiled, position)
    if where.island == target.where.island and (lies_there or len(island.links) == 1):
        return [Held(argument.buffer)] * len(island.links)
    source = Located(entry.sharding, where)
    post(where.island, Send(argument.buffer, run.serial, step, source, target, shape))
    return [Coming(source, islands[where.island].generation)] * len(island.links)


def _struck(run: RunState, faults: Sequence[Fault]) -> tuple[tuple[int, str], ...]:
    """Return the steps that injected faults make fail: decided before the run is sent, so that all hosts agree."""
    found = []
    for index, action in enumerate(run.compiled_plan.actions) if faults else ():
        try:
            for fault in faults if action.step.kind in ("launch", "host") else ():
                fault.strike(action.label, run.client)
        except InjectedFault as error:
            found.append((index, str(error)))
    return tuple(found)


def _given(boxes: Sequence[Any], values: Any, key_impl: Any) -> Given:
    """Return the ranges of a value that one host needs."""
    parts = tuple((box, values[tuple(slice(low, high) for low, high in box)]) for box in dict.fromkeys(boxes))
    return Given(parts, key_impl)
