"""Nodes compiled for the mesh that they are simulated on, to learn what XLA makes of them; results are cached.

Rule (``can_compile``). Compiling takes one or two milliseconds for an equation, whatever the number of devices, plus
half a millisecond once for each device. The alternative compiles for meshes of a few devices and scales the
collectives found there, which takes up to three compilations. So a node is compiled for its true mesh if creating the
devices takes no longer than those compilations would, or no longer than a quarter of a second, or if the node may not
fit into memory. Otherwise its memory is estimated (see ``node_estimates``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from jax.sharding import AbstractMesh, Mesh, NamedSharding

from pathways_nb.cost.hlo.compiled import CompiledFacts, collectives_by_compiling
from pathways_nb.jaxpr.jaxpr_digest import JaxprDigests, constant_key
from pathways_nb.program.build import Code
from pathways_nb.program.emit import emit, out_shardings
from pathways_nb.program.items import Const, equations
from pathways_nb.program.specs import trimmed
from pathways_nb.runtime.lowering.executables import CompileRequest
from pathways_nb.util.waiting import Promise

T = TypeVar("T")

_AT_LEAST, _FOR_EACH_EQUATION = 512, 8
"""Devices that can be created in a quarter of a second, and while one equation is compiled for small meshes."""
_MOST_DEVICES, _MOST_EQUATIONS = 4096, 10_000
"""Above these limits nothing is compiled for the true mesh: it would take too many threads, or minutes."""
_FEW_DEVICES = 16
"""Largest mesh used to find collectives where the true one is too large."""
_REMEMBERED = 256
"""Number of compiled nodes in the cache; the least recently used one is removed."""

_compiled: dict[Hashable, Promise[CompiledFacts]] = {}
_lock = threading.Lock()


def can_compile(request: CompileRequest, may_not_fit: bool = False) -> bool:
    """Return whether a node is compiled for the mesh that it runs on, by the rule above.

    Args:
        request: the node.
        may_not_fit: whether its estimated memory is close to a device's, so that the estimate is not enough.
    """
    count, devices = sum(1 for item in request.code.items for _ in equations(item.jaxpr)), request.mesh.size
    if count > _MOST_EQUATIONS or devices > _MOST_DEVICES:
        return False
    return may_not_fit or devices <= max(_AT_LEAST, _FOR_EACH_EQUATION * count)


def compiled(request: CompileRequest, sizes: Mapping[str, int], as_it_is: bool) -> CompiledFacts:
    """Return what the compiler reports about a node; equal nodes are compiled once.

    Args:
        request: the node.
        sizes: devices along each axis of its mesh.
        as_it_is: whether to compile for that mesh; otherwise for small meshes, from which collectives are scaled.

    Returns:
        Its collectives, the meshes compiled for, and its memory on the last of them.

    Raises:
        UsageError: it cannot be compiled for so small a mesh.
    """
    key = as_it_is, key_of(request, sizes)
    return made_once(_compiled, key, lambda: _compile(request, sizes, as_it_is))


def made_once(kept: dict[Hashable, Promise[T]], key: Hashable, make: Callable[[], T]) -> T:
    """Return what is made for a key; if several threads ask at the same time, the first makes it, the others wait.

    Args:
        kept: what was made before; the least recently used entry of many is removed.
        key: equal for what is made alike.
        make: makes it; what it raises is not kept.
    """
    with _lock:
        found = kept.pop(key, None)
        ours = found is None
        made: Promise[T] = Promise() if found is None else found
        kept[key] = made  # inserted last: dictionaries keep order, so the first key is the least recently used
        if len(kept) > _REMEMBERED:
            del kept[next(iter(kept))]
    if ours:
        try:
            made.set_result(make())
        except BaseException as error:
            made.set_exception(error)
            with _lock:
                kept.pop(key, None)
    return made.result()


def _compile(request: CompileRequest, sizes: Mapping[str, int], as_it_is: bool) -> CompiledFacts:
    specs = [trimmed(spec_of(sharding)) for sharding in request.arriving]
    outputs = [spec_of(sharding) for sharding in out_shardings(request.code, request.mesh)]
    traced = tuple(sizes.items())

    def on_mesh(mesh: Mesh | AbstractMesh) -> Callable[..., Any]:
        if as_it_is and is_per_shard(request.code):
            # The types within per-shard code name the mesh that it was traced on, which has no devices.
            mesh = request.mesh
        return emit(request.code, mesh, [NamedSharding(mesh, spec) for spec in specs], traced)

    most = max(_FEW_DEVICES, request.mesh.size if as_it_is else 0)
    return collectives_by_compiling(
        on_mesh, request.structs, specs, outputs, sizes, most_devices=most, for_mesh=True, donated=request.donated
    )


def key_of(request: CompileRequest, sizes: Mapping[str, int]) -> Hashable:
    """Return a key that is equal for equal code with equal layouts.

    Values are numbered in the order of their first use, so that their numbers in the program do not matter.
    """
    code, names = request.code, dict[int, int]()
    digests = JaxprDigests()
    bodies = tuple(digests.of(item.jaxpr) for item in code.items)
    constants = tuple(constant_key(x.value) for item in code.items for x in item.inputs if isinstance(x, Const))
    wires = tuple(
        tuple(
            "const" if isinstance(x, Const) else names.setdefault(x, len(names)) for x in (*item.inputs, *item.outputs)
        )
        for item in code.items
    )
    specs = tuple((item.in_specs, item.out_specs) for item in code.items)
    ends = tuple(map(names.get, code.inputs)), tuple(map(names.get, code.outputs))
    arriving = tuple(str(spec_of(sharding)) for sharding in request.arriving)
    mesh = tuple(sizes.items())
    return bodies, wires, constants, str(specs), ends, arriving, request.structs, request.donated, mesh


def is_per_shard(code: Code) -> bool:
    """Return whether any of the code is per-shard code, whose collectives are written in it."""
    return any(eqn.primitive.name == "shard_map" for item in code.items for eqn in equations(item.jaxpr))


def spec_of(sharding: Any) -> Any:
    """Return the partition spec of a ``NamedSharding``, or ``None`` for another sharding."""
    return sharding.spec if isinstance(sharding, NamedSharding) else None
