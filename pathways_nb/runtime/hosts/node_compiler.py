"""Compiles nodes that travelled, for the devices of this host's island; repeats are compiled once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pathways_nb.compilers import kept_executables
from pathways_nb.program import jax_contexts
from pathways_nb.runtime.hosts.messages import NodeFacts, PortableNode
from pathways_nb.runtime.lowering.executables import (
    accept_small_elements,
    computes_in_its_call,
    is_on_one,
    memory_of,
    quietly,
)
from pathways_nb.util.waiting import Promise


class NodeCompiler:
    """The executables of one host.

    Args:
        devices: all devices of its island, those of other hosts included.
    """

    def __init__(self, devices: Sequence[Any]):
        self.devices = devices
        self._compiled: dict[tuple[int, str], Promise[tuple[Any, NodeFacts]]] = {}
        self._lock = threading.Lock()

    def known(self, first: int, digest: str) -> bool:
        """Return whether a node was compiled for the devices from ``first`` on."""
        return (first, digest) in self._compiled

    def executable(self, first: int, digest: str) -> Any:
        """Return what was compiled."""
        return self._compiled[first, digest].result()[0]

    def compile(self, first: int, node: PortableNode) -> NodeFacts:
        """Compile a node for the devices from ``first`` on, unless that was done.

        Returns:
            What the compiler tells.
        """
        with self._lock:
            found = self._compiled.get((first, node.digest))
            if found is None:
                ours = self._compiled[first, node.digest] = Promise()
        if found is not None:
            return found.result()[1]
        try:
            with jax_contexts.entered(node.contexts):
                ours.set_result(self._compile(first, node))
        except BaseException as error:
            ours.set_exception(error)
            with self._lock:
                del self._compiled[first, node.digest]
            raise
        return ours.result()[1]

    def _compile(self, first: int, node: PortableNode) -> tuple[Any, NodeFacts]:
        count = int(np.prod(node.shape))
        chosen = np.array(self.devices[first : first + count], object).reshape(node.shape)
        mesh = Mesh(chosen, node.axes, axis_types=(jax.sharding.AxisType.Auto,) * len(node.axes))
        exported = jax.export.deserialize(bytearray(node.exported))
        structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in exported.in_avals]
        leaving = [None if spec is None else NamedSharding(mesh, spec) for spec in node.leaving]
        compiled = self._compiled_for(exported, node, mesh, structs, leaving)
        specs = tuple(
            _spec(sharding, mesh, len(aval.shape))
            for sharding, aval in zip(jax.tree.leaves(compiled.output_shardings), exported.out_avals, strict=True)
        )
        if None in specs:  # no axes of the mesh express what the compiler chose: all devices get all of it
            specs = tuple(PartitionSpec() if spec is None else spec for spec in specs)
            leaving = [NamedSharding(mesh, spec or PartitionSpec()) for spec in specs]
            compiled = self._compiled_for(exported, node, mesh, structs, leaving)
        cost = compiled.cost_analysis() or {}
        flops = float(cost.get("flops", 0.0)) * count
        temporary, reused = memory_of(compiled)
        may_block = computes_in_its_call(exported.mlir_module, cost, mesh)
        return compiled, NodeFacts(specs, max(flops, 0.0), temporary, reused, may_block)

    @staticmethod
    def _compiled_for(exported: Any, node: PortableNode, mesh: Mesh, structs: Any, leaving: Any) -> Any:
        arriving = tuple(NamedSharding(mesh, spec) for spec in node.arriving)

        def launch(*arrays: Any) -> Any:
            return exported.call(*arrays)

        launch.__name__ = launch.__qualname__ = exported.fun_name
        jitted = jax.jit(
            launch, in_shardings=arriving, out_shardings=leaving, donate_argnums=node.donated, keep_unused=True
        )
        lowered = quietly(lambda: jitted.lower(*structs))
        # Processes that share a node must all make it alike, so none of them loads what others may not have.
        shared = len({device.process_index for device in mesh.devices.flat}) > 1
        options = dict(node.options)
        compiled = lowered.compile(options or None) if shared else kept_executables.compiled(lowered, options)
        return accept_small_elements(compiled)


def _spec(sharding: Any, mesh: Mesh, rank: int) -> PartitionSpec | None:
    """Return a sharding as a spec on a mesh; ``None`` if there is none."""
    if isinstance(sharding, NamedSharding) and sharding.mesh == mesh:
        return sharding.spec
    if is_on_one(sharding, mesh):
        return None
    found = (
        spec for spec in _specs(mesh.axis_names, rank) if sharding.is_equivalent_to(NamedSharding(mesh, spec), rank)
    )
    return next(found, None)


def _specs(axes: Sequence[str], rank: int) -> Iterator[PartitionSpec]:
    """Yield every way to split dimensions by axes, replicas first: few, since meshes have few axes."""
    for places in itertools.product(range(-1, rank), repeat=len(axes)):
        for order in itertools.permutations(range(len(axes))):
            split: list[list[str]] = [[] for _ in range(rank)]
            for axis in order:
                if places[axis] >= 0:
                    split[places[axis]].append(axes[axis])
            yield PartitionSpec(*(tuple(names) or None for names in split))
