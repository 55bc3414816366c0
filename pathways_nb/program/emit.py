"""From a node's traced code to a function for the devices it was placed on.

Tracing stands on the abstract mesh of a virtual slice; running needs the mesh of an island. ``emit`` re-emits a
node's equations with the one replaced by the other (measured in JAX 0.10 and 0.12; see the tests).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from pathways_nb.program.build import Code
from pathways_nb.program.items import Const, closed_over, equations
from pathways_nb.util.primitives import ON_DEVICES


def emit(
    code: Code, mesh: Mesh, arriving: Sequence[Any], traced: tuple[tuple[str, int], ...] = ()
) -> Callable[..., list[Any]]:
    """The node as a function of its input arrays, in the order of ``code.inputs``.

    Args:
        code: the node's items.
        mesh: the devices it was placed on.
        arriving: the sharding each input arrives with; where a computation declares another, it is constrained
            inside, so that the compiler does the resharding. Values between fused computations likewise.
        traced: axes and sizes of the mesh it was traced on, if that is larger or smaller.
    """
    traced = traced or mesh.abstract_mesh.shape_tuple
    bodies = [jex.jaxpr_as_fun(_on_mesh(item.jaxpr, mesh, traced)) for item in code.items]
    layouts = dict(zip(code.inputs, arriving, strict=True))
    layouts.update(zip(code.outputs, out_shardings(code, mesh, frozenset()), strict=False))

    def laid_out(value: int, array: Any, spec: PartitionSpec | None) -> Any:
        if spec is None:
            return array
        target, actual = NamedSharding(mesh, spec), layouts.get(value)
        if actual is not None and target.is_equivalent_to(actual, array.ndim):
            return array
        return jax.lax.with_sharding_constraint(array, target)

    def node(*arrays: Any) -> list[Any]:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            values: dict[int, Any] = dict(zip(code.inputs, arrays, strict=True))
            for item, body in zip(code.items, bodies, strict=True):
                operands = [
                    x.value if isinstance(x, Const) else laid_out(x, values[x], spec)
                    for x, spec in zip_longest(item.inputs, item.in_specs)
                ]
                for x, array, spec in zip_longest(item.outputs, body(*operands), item.out_specs):
                    values[x] = laid_out(x, array, spec)
            # A node without outputs (a print) still needs one to wait on.
            return [values[v] for v in code.outputs] or [jax.numpy.zeros(())]

    node.__name__ = node.__qualname__ = _plain(code.name)
    return node


def module_of(node: str) -> str:
    """What XLA and its profiler call the module of a node of this name."""
    return f"jit_{_plain(node)}"


def _plain(name: str) -> str:
    return "pw_" + (re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "node")


def out_shardings(code: Code, mesh: Mesh, replicated: frozenset[int]) -> list[NamedSharding | None]:
    """The declared sharding of each output; ``None`` is the compiler's choice.

    Args:
        code: the node's items.
        mesh: its devices.
        replicated: values that travel to a place with another number of devices, and so leave whole.
    """
    declared = {x: spec for item in code.computations for x, spec in zip(item.outputs, item.out_specs, strict=True)}
    found: list[NamedSharding | None] = []
    for value in code.outputs:
        spec = declared.get(value)
        if value in replicated or (spec is None and not code.inputs):
            spec = PartitionSpec()
        found.append(None if spec is None else NamedSharding(mesh, spec))
    return found or [NamedSharding(mesh, PartitionSpec())]


def shape_key(code: Code) -> Hashable:
    """Equal for nodes that compute the same from inputs of equal shape: repeats of a call are lowered once."""
    names: dict[int, int] = {}
    parts: list[Hashable] = []
    for item in code.items:
        operands = tuple(
            ("const", id(x)) if isinstance(x, Const) else names.setdefault(x, len(names)) for x in item.inputs
        )
        outputs = tuple(names.setdefault(x, len(names)) for x in item.outputs)
        parts.append((_body_key(item.jaxpr, item.place is not None), operands, outputs, item.in_specs, item.out_specs))
    return code.name, tuple(parts), tuple(names[x] for x in code.inputs), tuple(names[x] for x in code.outputs)


def digest(code: Code, *texts: str) -> str:
    """A fingerprint of a lowered node: its texts and the constants it holds, which the text may leave out."""
    found = hashlib.sha256("\0".join(texts).encode())
    for item in code.items:
        found.update(repr(list(_callbacks(item.jaxpr))).encode())
        for const in [*closed_over(item.jaxpr), *(x.value for x in item.inputs if isinstance(x, Const))]:
            data = jax.random.key_data(const) if jax.dtypes.issubdtype(const.dtype, jax.dtypes.prng_key) else const
            found.update(np.asarray(data).tobytes())
    return found.hexdigest()


def has_callbacks(code: Code) -> bool:
    """Whether a node calls back to the host."""
    return any(next(_callbacks(item.jaxpr), None) is not None for item in code.items)


def _callbacks(jaxpr: jex.ClosedJaxpr) -> Iterator[tuple[str, Hashable]]:
    """Host callbacks, which the lowered text only counts."""
    for eqn in equations(jaxpr):
        if eqn.effects or "callback" in eqn.primitive.name:
            yield from ((eqn.primitive.name, (k, _param_key(v))) for k, v in sorted(eqn.params.items()))


def _body_key(closed: jex.ClosedJaxpr, computation: bool) -> Hashable:
    if computation:
        return id(closed)  # JAX itself keeps one jaxpr for equal calls
    (eqn,) = closed.jaxpr.eqns or (None,)
    if eqn is None or closed.consts:
        return id(closed)
    shapes = tuple(str(atom.aval) if not isinstance(atom, jex.Literal) else repr(atom) for atom in eqn.invars)
    return eqn.primitive.name, shapes, tuple((k, _param_key(v)) for k, v in sorted(eqn.params.items()))


def _param_key(value: Any) -> Hashable:
    if isinstance(value, (jex.Jaxpr, jex.ClosedJaxpr)) or callable(value):
        return id(value)
    if isinstance(value, (tuple, list)):
        return tuple(map(_param_key, value))
    return repr(value)


def _on_mesh(closed: jex.ClosedJaxpr, mesh: Mesh, traced: tuple[tuple[str, int], ...]) -> jex.ClosedJaxpr:
    return jex.ClosedJaxpr(_rebind(closed.jaxpr, mesh, traced), closed.consts)


def _rebind(jaxpr: jex.Jaxpr, mesh: Mesh, traced: tuple[tuple[str, int], ...]) -> jex.Jaxpr:
    abstract = mesh.abstract_mesh

    def value(name: str, old: Any, on_devices: bool) -> Any:
        if isinstance(old, NamedSharding) and isinstance(old.mesh, AbstractMesh):
            if old.mesh.shape_tuple != traced:
                # It comes from another place's type; what it says there means nothing here.
                return NamedSharding(abstract, PartitionSpec())
            manual = jax.sharding.AxisType.Manual in old.mesh.axis_types  # inside shard_map: a type, no devices
            return NamedSharding(mesh, old.spec) if on_devices and not manual else old
        if name == "mesh" and isinstance(old, AbstractMesh):
            return mesh
        if isinstance(old, jex.ClosedJaxpr):
            return _on_mesh(old, mesh, traced)
        if isinstance(old, jex.Jaxpr):
            return _rebind(old, mesh, traced)
        if type(old) in (tuple, list):
            return type(old)(value(name, part, on_devices) for part in old)
        return old

    return jaxpr.replace(
        eqns=[
            eqn.replace(params={k: value(k, v, eqn.primitive.name in ON_DEVICES) for k, v in eqn.params.items()})
            for eqn in jaxpr.eqns
        ]
    )
