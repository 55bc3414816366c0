"""What the controller tells hosts, and hosts each other: plain data, pickled once for all hosts of an island.

A host takes messages in the order in which they were sent, and so launches in the order that the controller decided, on
every host of an island the same. (Collectives that two hosts enter in different orders give wrong numbers without an
error.) What a host found out comes back as reports, in batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pathways_nb.errors import PathwaysError
from pathways_nb.program.jax_contexts import Contexts
from pathways_nb.runtime.hosts.channel import Door
from pathways_nb.runtime.lowering.pieces import Located

# ---- arguments of a call


@dataclass(frozen=True, slots=True)
class Held:
    """An argument in a logical buffer of the host, used as it is or laid out anew on the host's devices."""

    buffer: int


@dataclass(frozen=True, slots=True)
class Coming:
    """An argument that hosts send from where it lies; ``generation`` counts the lives of their island."""

    source: Located
    generation: int


@dataclass(frozen=True, slots=True)
class Given:
    """An argument that comes with the message: for each range of indices that this host's devices need, its values.

    ``key_impl`` names the implementation of typed random keys, whose numbers travel.
    """

    parts: tuple[tuple[tuple[tuple[int, int], ...], np.ndarray], ...]
    key_impl: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """An argument that there will never be."""

    error: PathwaysError


Argument = Held | Coming | Given | Failed | None
"""How an argument reaches an island; ``None`` if no step there needs it."""


# ---- from the controller


@dataclass(frozen=True, slots=True)
class Call:
    """A run begins on this island; it comes with the run's first range there.

    Args:
        run: its number.
        plan: digest of its plan, which the host has.
        client: who called.
        arguments: of each step that brings one, in the order of ``CompiledPlan.brings``.
        results: logical buffers of its results.
        generations: the life of each island for which the plan was compiled.
        faults: steps that injected faults make fail, with their texts: decided before, so that all hosts agree.
    """

    run: int
    plan: str
    client: str
    arguments: tuple[Argument, ...]
    results: tuple[int, ...]
    generations: tuple[int, ...]
    faults: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Range:
    """Carry out steps ``start`` to ``stop`` of a run's order on this island.

    Args:
        run: the run.
        start: first step.
        stop: step after the last.
        sent: when it was sent, in seconds of the controller's clock.
    """

    run: int
    start: int
    stop: int
    sent: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Skip what is not launched yet of a run, with this error or as cancelled, and forget it when it has ended."""

    run: int
    error: PathwaysError | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """Send a buffer, once it is computed, to the hosts of another island, for a step of a run there.

    ``error`` says why it will never be computed, if that is known.
    """

    buffer: int
    run: int
    step: int
    source: Located
    target: Located
    shape: tuple[int, ...]
    error: PathwaysError | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget these buffers."""

    buffers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ForgetPlans:
    """Forget these plans, which will not be called again."""

    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Devices:
    """From now on exactly these devices of this island are lost."""

    lost_devices: frozenset[int]


@dataclass(frozen=True, slots=True)
class IslandLost:
    """An island lost its hosts: what its lives up to ``generation`` were to send will not come."""

    island: int
    generation: int
    error: str


Message = Call | Range | Stop | Send | Drop | ForgetPlans | Devices | IslandLost


# ---- between hosts


@dataclass(frozen=True, slots=True)
class Offer:
    """Pieces that wait to be pulled (see ``device_route``).

    Args:
        address: of the transfer server.
        number: of the offer.
        mark: a random number that comes behind the pieces, so that others in their place are noticed.
        pieces: shape and dtype of each.
        positions: for each, the position of a device that needs it, in the order of the target's mesh.
        first: the first device of that mesh within its island.
    """

    address: str
    number: int
    mark: int
    pieces: tuple[tuple[tuple[int, ...], Any], ...]
    positions: tuple[int, ...]
    first: int


@dataclass(frozen=True, slots=True)
class Parcel:
    """What one host sends to another for one step of a run, or why it cannot.

    Args:
        run: the run that receives it.
        step: its step that brings or moves the value.
        host: number of the sender within its island.
        arrays: the pieces, in the order of ``crossings.cuts``.
        began: when the value was there to be sent, in seconds of the controller's clock.
        error: why there is no value.
        key_impl: of typed random keys, whose numbers travel.
        offer: where to pull the pieces from, in place of ``arrays``.
    """

    run: int
    step: int
    host: int
    arrays: tuple[Any, ...] = ()
    began: float = 0.0
    error: PathwaysError | None = None
    key_impl: str | None = None
    offer: Offer | None = None


# ---- what is compiled


@dataclass(frozen=True, slots=True)
class PortableNode:
    """A node's code as text for any devices of the right number, with all that compiling it needs.

    Args:
        digest: fingerprint of all of it.
        exported: what ``jax.export`` serialised.
        shape: devices along each axis of the mesh.
        axes: names of these axes.
        arriving: the spec of each input.
        leaving: the spec of each output; ``None`` leaves it to the compiler.
        donated: inputs whose memory may be taken over.
        options: the compiler's.
        contexts: JAX's, of the call.
    """

    digest: str
    exported: bytes
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    arriving: tuple[Any, ...]
    leaving: tuple[Any, ...]
    donated: tuple[int, ...]
    options: tuple[tuple[str, Any], ...]
    contexts: Contexts


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What compiling a node told: specs of its outputs, flops of all devices, temporary and reused bytes per device.

    ``may_block`` says whether its call may take long.
    """

    specs: tuple[Any, ...]
    flops: float
    temporary: int
    reused: int
    may_block: bool


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What a host says of itself when it begins.

    Args:
        name: of its machine.
        process: its process id.
        versions: of Python, JAX and this package, by name.
        platform: of its devices, as JAX calls it.
        kind: of its devices, as JAX calls it.
        devices: number of its devices.
        memory: bytes of each; 0 if they do not tell.
        door: where it takes connections; ``None`` if it is a host of this process.
    """

    name: str
    process: int
    versions: dict[str, str]
    platform: str
    kind: str
    devices: int
    memory: int
    door: Door | None = None
