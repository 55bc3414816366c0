"""Nodes compiled by the compiler of the chip that they are simulated on: which ones, for which devices, by which.

A node is lowered in this process for the devices of its place: a virtual slice of 16 of 64 chips is compiled for 16
chips, in the shape that the slice has in its island, and for GPUs in as many hosts as it reaches. The compiler runs in
a process of its own (``compilers``). Equal nodes are compiled once, different ones two at a time. Where a node repeats
blocks, programs of a few of them are compiled in its place (``program.compiled_blocks``).

A node that is shorter than ``SHORT`` by its jaxpr is not compiled: a second of a processor for each scalar would be
spent for microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from pathways_nb.compilers import packages, targets
from pathways_nb.compilers.packages import CompilerKind
from pathways_nb.compilers.targets import CompilerTarget
from pathways_nb.cost.efficiency import EFFICIENCY
from pathways_nb.cost.hardware.topology import Axis, Topology
from pathways_nb.cost.model import CostModel
from pathways_nb.errors import UsageError
from pathways_nb.program import jax_contexts
from pathways_nb.program.compiled_blocks import CompiledBlocks, compile_blocks, named
from pathways_nb.program.emit import emit, out_shardings
from pathways_nb.runtime.lowering.executables import CompileRequest
from pathways_nb.util.words import counted

CompilerChoice = Literal["auto", "own", "cpu"]
"""Whose compiler a simulated node is compiled by: its chip's own, the CPU's, or the own where it is installed."""
SHORT = 50e-6
"""Seconds below which a node is not compiled by its chip's compiler."""


def kind_for(model: CostModel, choice: CompilerChoice) -> CompilerKind | None:
    """Return the compiler of a model's chip; None if nodes are estimated without it.

    Args:
        model: of the simulated devices.
        choice: the user's.

    Raises:
        UsageError: ``"own"`` is wanted, and the chip has no compiler, or it is not installed.
    """
    kind = targets.kind_of(model.chip)
    if choice == "own":
        if kind is None:
            raise UsageError(
                f'attach("sim", compiler="own"): no compiler knows the chip {model.chip.name}. Leave compiler out to '
                f"estimate nodes without one, or name the most similar chip's: chip.replace(compiler=…)."
            )
        if not packages.is_installed(kind):
            raise UsageError(
                f'attach("sim", compiler="own"): the {kind.upper()} compiler, which {model.chip.name} needs, is not '
                f"installed. {packages.how_to_install(kind)}"
            )
        return kind
    # Shares of peaks that were measured, or are the user's, say more than those which the compiler's text is priced by.
    if kind is None or choice == "cpu" or model.efficiency != EFFICIENCY:
        return None
    return kind if packages.is_installed(kind) else None


def name_of(model: CostModel, choice: CompilerChoice) -> str:
    """Return the name and the version of the compiler that compiles nodes of a model's chip; empty without one."""
    kind = kind_for(model, choice)
    return "" if kind is None else packages.version_of(kind)


def about(model: CostModel, choice: CompilerChoice) -> str:
    """Return one line that says what prices the nodes of simulated devices, and how to get more where that is less."""
    if name := name_of(model, choice):
        return f"nodes from {SHORT * 1e6:.0f} µs on are compiled for {model.chip.name} by {name}"
    said = "nodes are estimated from their jaxpr, and compiled for CPU devices"
    kind = targets.kind_of(model.chip)
    if choice == "auto" and kind is not None and not packages.is_installed(kind):
        return f"{said}; the compiler of {model.chip.name} says more: {packages.how_to_install(kind)}"
    return said


class NodeDevices(NamedTuple):
    """The devices of a node, as its compiler sees them, and as they lie in their island.

    Args:
        target: what the compiler is told.
        hosts: (devices,) number of the host of each, counted from the first one's.
        words: such as ``"16 devices, v5e:2x8"``.
    """

    target: CompilerTarget
    hosts: tuple[int, ...]
    words: str


def devices_of(request: CompileRequest, topology: Topology) -> NodeDevices:
    """Return the devices that a node is compiled for.

    Args:
        request: the node; its label names its devices.
        topology: of its island.
    """
    count, each = request.mesh.size, topology.devices_per_host
    first = request.label.device % each
    hosts = tuple((first + number) // each for number in range(count))
    target = targets.target(_part(topology, count, hosts))
    return NodeDevices(target, hosts, f"{counted(count, 'device')}, {target.name}")


def compiled_node(request: CompileRequest, target: CompilerTarget, is_wanted: Callable[[], bool]) -> CompiledBlocks:
    """Return a node compiled by the compiler of its chip.

    Args:
        request: the node.
        target: its devices.
        is_wanted: whether anybody still waits for it; the compiler is ended if not.

    Raises:
        CancelledError: nobody waits any more.
        CompilerError: the compiler does not take the program.
        UsageError: the compiler is not installed.
    """
    function, arguments = _laid_out(request)
    options = request.code.options_on(target.kind)
    # Who waits for the plan shows progress for all of its nodes.
    return compile_blocks(function, arguments, request.donated, target, options, lambda line: None, is_wanted)


def _laid_out(request: CompileRequest) -> tuple[Callable[..., list[jax.Array]], list[jax.ShapeDtypeStruct]]:
    """Return a node as a function with its declared layouts, and its arguments."""
    jax_contexts.adopt(request.contexts)
    mesh, arriving = request.mesh, [_on(sharding, request) for sharding in request.arriving]
    node, declared = emit(request.code, mesh, arriving), out_shardings(request.code, mesh)

    def laid_out(*arrays: jax.Array) -> list[jax.Array]:
        made = node(*arrays)
        return [
            array if sharding is None else jax.lax.with_sharding_constraint(array, sharding)
            for array, sharding in zip(made, declared, strict=True)
        ]

    if not arriving:
        # What is lowered says by its arguments which devices it is for.
        return named(lambda _: laid_out(), node.__name__), [_whole(request.mesh)]
    arguments = [
        jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=sharding, weak_type=struct.weak_type)
        for struct, sharding in zip(request.structs, arriving, strict=True)
    ]
    return named(laid_out, node.__name__), arguments


def _whole(mesh: Any) -> jax.ShapeDtypeStruct:
    """Return a number that is whole on every device of a mesh."""
    return jax.ShapeDtypeStruct((), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec()))


def _on(sharding: object, request: CompileRequest) -> NamedSharding:
    """Return a layout on the node's mesh; what has no spec is whole on every device."""
    return NamedSharding(request.mesh, sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec())


def _part(topology: Topology, count: int, hosts: tuple[int, ...]) -> Topology:
    """Return some devices of an island as an island of their own.

    Of a torus that is the box that so many neighbours take, or a row where they take none. GPUs are in hosts that have
    equally many: where a place begins in the middle of a host, in more and smaller ones than it reaches.
    """
    chip = topology.chip
    if chip.interconnect != "torus":
        each = math.gcd(*(hosts.count(host) for host in set(hosts)))
        return replace(topology, devices=count, devices_per_host=each)
    axes = topology.group(count).axes
    axes = (*(Axis(1),) * (len(chip.pod) - len(axes)), *axes)
    devices = math.prod(axis.length for axis in axes) * chip.devices_per_chip
    return replace(topology, devices=devices, axes=axes)
