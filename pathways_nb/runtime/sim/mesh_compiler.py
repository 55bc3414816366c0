"""Nodes compiled for the mesh that they are simulated on: what the compiler says of them, remembered.

The rule. Compiling takes one or two milliseconds for an equation, however many devices the mesh has; the devices to
compile for take half a millisecond each, once. The alternative, meshes of a few devices from which collectives are
scaled, takes up to three compilations. So a node is compiled for its true mesh where its devices take no longer than
those would, or no longer than a quarter of a second, or where it may not fit into memory. Else its memory is estimated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from typing import Any

from jax.sharding import Mesh, NamedSharding

from pathways_nb.cost.hlo.compiled import CompiledFacts, collectives_by_compiling
from pathways_nb.program.build import Code
from pathways_nb.program.emit import emit, out_shardings
from pathways_nb.program.items import Const, equations
from pathways_nb.program.specs import trimmed
from pathways_nb.runtime.lowering.executables import CompileRequest

_AT_LEAST, _FOR_EACH_EQUATION = 512, 8
"""Devices that a client is made of in a quarter of a second, and while one equation is compiled for small meshes."""
_MOST_DEVICES, _MOST_EQUATIONS = 4096, 10_000
"""More threads than that, or minutes, are not spent."""
_FEW_DEVICES = 16
"""Of the mesh to find collectives with, where the true one is too large."""
_REMEMBERED = 256
"""Compiled nodes that are remembered: those used last."""

_compiled: dict[Hashable, Future[CompiledFacts]] = {}
_lock = threading.Lock()


def can_compile(request: CompileRequest, may_not_fit: bool = False) -> bool:
    """Whether a node is compiled for the mesh it runs on, by the rule above."""
    count, devices = sum(1 for item in request.code.items for _ in equations(item.jaxpr)), request.mesh.size
    if count > _MOST_EQUATIONS or devices > _MOST_DEVICES:
        return False
    return may_not_fit or devices <= max(_AT_LEAST, _FOR_EACH_EQUATION * count)


def compiled(request: CompileRequest, sizes: Mapping[str, int], as_it_is: bool) -> CompiledFacts:
    """What the compiler makes of a node; equal nodes are compiled once.

    Args:
        request: the node. sizes: of the axes of its mesh.
        as_it_is: whether for that mesh, and not for a small one.

    Raises:
        UsageError: it cannot be compiled for a mesh so small.
    """
    key = as_it_is, _key(request, sizes)
    with _lock:
        found = _compiled.pop(key, None)
        ours = found is None
        made: Future[CompiledFacts] = Future() if found is None else found
        _compiled[key] = made  # what was used last is last
        if len(_compiled) > _REMEMBERED:
            del _compiled[next(iter(_compiled))]
    if ours:
        try:
            made.set_result(_compile(request, sizes, as_it_is))
        except BaseException as error:
            made.set_exception(error)
            with _lock:
                _compiled.pop(key, None)
    return made.result()


def _compile(request: CompileRequest, sizes: Mapping[str, int], as_it_is: bool) -> CompiledFacts:
    specs = [trimmed(spec_of(sharding)) for sharding in request.arriving]
    outputs = [spec_of(sharding) for sharding in out_shardings(request.code, request.mesh, request.replicated)]
    traced = tuple(sizes.items())

    def on_mesh(mesh: Mesh) -> Callable[..., Any]:
        if as_it_is and is_per_shard(request.code):
            # The types within per-shard code name the mesh that it was traced on, which has no devices.
            mesh = request.mesh
        return emit(request.code, mesh, [NamedSharding(mesh, spec) for spec in specs], traced)

    most = max(_FEW_DEVICES, request.mesh.size if as_it_is else 0)
    return collectives_by_compiling(
        on_mesh, request.structs, specs, outputs, sizes, most_devices=most, for_mesh=True, donated=request.donated
    )


def _key(request: CompileRequest, sizes: Mapping[str, int]) -> Hashable:
    """The text of the code and how it is laid out."""
    code, names = request.code, dict[int, int]()
    bodies = tuple(str(item.jaxpr) for item in code.items)
    wires = tuple(
        tuple(
            "const" if isinstance(x, Const) else names.setdefault(x, len(names)) for x in (*item.inputs, *item.outputs)
        )
        for item in code.items
    )
    specs = tuple((item.in_specs, item.out_specs) for item in code.items)
    whole = tuple(value in request.replicated for value in code.outputs)
    ends = tuple(map(names.get, code.inputs)), tuple(map(names.get, code.outputs))
    arriving = tuple(str(spec_of(sharding)) for sharding in request.arriving)
    mesh = tuple(sizes.items())
    return bodies, wires, str(specs), whole, ends, arriving, request.structs, request.donated, mesh


def is_per_shard(code: Code) -> bool:
    """Whether any of it is code for one shard, which holds its collectives."""
    return any(eqn.primitive.name == "shard_map" for item in code.items for eqn in equations(item.jaxpr))


def spec_of(sharding: Any) -> Any:
    """The spec of a sharding by axes; ``None`` of any other."""
    return sharding.spec if isinstance(sharding, NamedSharding) else None
