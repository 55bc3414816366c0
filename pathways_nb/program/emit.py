"""From a node's traced code to a function for the devices it was placed on.

A program is traced once, on the abstract meshes of virtual slices; running needs the mesh of an island's devices.
``emit`` re-emits a node's equations with the abstract mesh replaced by the concrete one (tested with JAX 0.10 and
0.12). Lowering on the abstract mesh and choosing devices at compilation would be simpler, but JAX supports that for its
default client only, and on CPU each island has a client of its own.

``shape_key`` and ``digest`` say which nodes may share an executable. Lowering and compiling are in
``runtime/lowering/executables.py``; nothing here starts them.
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

from pathways_nb.cost.jaxpr.primitives import ON_DEVICES
from pathways_nb.plan.function_names import without_place
from pathways_nb.program.action_marks import unnumbered
from pathways_nb.program.build import Code
from pathways_nb.program.guarded_callbacks import KeptExceptions, guarded
from pathways_nb.program.items import Const, closed_over, equations


def emit(
    code: Code,
    mesh: Mesh | AbstractMesh,
    arriving: Sequence[Any],
    traced: tuple[tuple[str, int], ...] = (),
    kept: KeptExceptions | None = None,
) -> Callable[..., list[Any]]:
    """Return the node as a function of its input arrays, which returns its output arrays as a list.

    Args:
        code: the node's items; inputs and outputs are in the order of ``code.inputs`` and ``code.outputs``.
        mesh: the devices it was placed on.
        arriving: the sharding that each input arrives with. Where a computation declares another one, the input is
            constrained inside the function, so that the compiler does the resharding; likewise the values between
            fused computations.
        traced: axis names and sizes of the mesh it was traced on; empty if they are those of ``mesh``.
        kept: takes exceptions of its host callbacks; ``None`` to leave them to XLA.
    """
    traced = traced or mesh.abstract_mesh.shape_tuple
    bodies = [jex.jaxpr_as_fun(_on_mesh(item.jaxpr, mesh, traced, kept)) for item in code.items]
    layouts = dict(zip(code.inputs, arriving, strict=True))
    layouts.update(zip(code.outputs, out_shardings(code, mesh), strict=False))

    def laid_out(value: int, array: Any, spec: PartitionSpec | None) -> Any:
        """Return an array constrained to a declared spec, unless it arrives or leaves in that layout already."""
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
                # ``zip_longest``: a computation has a spec for each value, an ordinary operation has none.
                operands = [
                    x.value if isinstance(x, Const) else laid_out(x, values[x], spec)
                    for x, spec in zip_longest(item.inputs, item.in_specs)
                ]
                for x, array, spec in zip_longest(item.outputs, body(*operands), item.out_specs):
                    values[x] = laid_out(x, array, spec)
            # A node without outputs (a print) needs one, so that its end can be awaited.
            return [values[v] for v in code.outputs] or [jax.numpy.zeros(())]

    node.__name__ = node.__qualname__ = _plain(code.name)
    return node


def module_of(node: str) -> str:
    """Return the name of a node's module in XLA and its profiler, from which exact stamps find the node again."""
    return f"jit_{_plain(unnumbered(node))}"


def _plain(name: str) -> str:
    return "pw_" + (re.sub(r"[^A-Za-z0-9]+", "_", without_place(name)).strip("_") or "node")


def out_shardings(code: Code, mesh: Mesh | AbstractMesh) -> list[NamedSharding | None]:
    """Return the declared sharding of each output; ``None`` leaves the choice to the compiler.

    Args:
        code: the node's items.
        mesh: its devices.
    """
    declared = {x: spec for item in code.computations for x, spec in zip(item.outputs, item.out_specs, strict=True)}
    found: list[NamedSharding | None] = []
    for value in code.outputs:
        spec = declared.get(value)
        # Without inputs or a declared spec, nothing determines on which devices ``jax.jit`` runs it.
        if spec is None and not code.inputs:
            spec = PartitionSpec()
        found.append(None if spec is None else NamedSharding(mesh, spec))
    # A node without outputs returns zeros instead, see ``emit``.
    return found or [NamedSharding(mesh, PartitionSpec())]


def shape_key(code: Code) -> Hashable:
    """Return a key that is equal for nodes that compute the same from inputs of equal shape.

    With it, repeats of a call within a program are lowered once. Values are numbered in order of appearance, since
    equal calls read different values. Jaxprs and constants are compared by identity, so keys are comparable within one
    trace only; ``digest`` compares across traces.
    """
    names: dict[int, int] = {}
    parts: list[Hashable] = []
    for item in code.items:
        operands = tuple(
            ("const", id(x)) if isinstance(x, Const) else names.setdefault(x, len(names)) for x in item.inputs
        )
        outputs = tuple(names.setdefault(x, len(names)) for x in item.outputs)
        body = _body_key(item.jaxpr, item.place is not None), repr(item.compiler_options)
        parts.append((body, operands, outputs, item.in_specs, item.out_specs))
    return code.name, tuple(parts), tuple(names[x] for x in code.inputs), tuple(names[x] for x in code.outputs)


def digest(code: Code, *texts: str) -> str:
    """Return a fingerprint of a lowered node, equal for nodes that may share an executable.

    Args:
        code: the node's items. Constants are part of the fingerprint, because the lowered text may elide them, and host
            callbacks by identity, so a cache must keep the code of a node that has any.
        *texts: the lowered text, and what else distinguishes executables.
    """
    # The null byte keeps texts apart: ("ab", "c") is another node than ("a", "bc").
    found = hashlib.sha256("\0".join(texts).encode())
    for item in code.items:
        found.update(repr(list(_callbacks(item.jaxpr))).encode())
        for const in [*closed_over(item.jaxpr), *(x.value for x in item.inputs if isinstance(x, Const))]:
            # Typed keys have no form in NumPy.
            data = jax.random.key_data(const) if jax.dtypes.issubdtype(const.dtype, jax.dtypes.prng_key) else const
            found.update(np.asarray(data).tobytes())
    return found.hexdigest()


def has_callbacks(code: Code) -> bool:
    """Return whether a node calls back to the host."""
    return any(next(_callbacks(item.jaxpr), None) is not None for item in code.items)


def _callbacks(jaxpr: jex.ClosedJaxpr) -> Iterator[tuple[str, Hashable]]:
    """Yield the parameters of effects and host callbacks, which the lowered text only counts."""
    for eqn in equations(jaxpr):
        # A collective has the axis that it names as an effect, which is none on the host.
        effects = [effect for effect in eqn.effects if type(effect).__name__ != "NamedAxisEffect"]
        if effects or "callback" in eqn.primitive.name:
            yield from ((eqn.primitive.name, (k, _param_key(v))) for k, v in sorted(eqn.params.items()))


def _body_key(closed: jex.ClosedJaxpr, computation: bool) -> Hashable:
    """Return a key of an item's jaxpr: of an ordinary operation its one equation, else the jaxpr's identity."""
    if computation:
        return id(closed)  # JAX keeps one jaxpr for equal calls
    (eqn,) = closed.jaxpr.eqns or (None,)
    if eqn is None or closed.consts:
        return id(closed)
    shapes = tuple(str(atom.aval) if not isinstance(atom, jex.Literal) else repr(atom) for atom in eqn.invars)
    return eqn.primitive.name, shapes, tuple((k, _param_key(v)) for k, v in sorted(eqn.params.items()))


def _param_key(value: Any) -> Hashable:
    """Return a key of an equation's parameter; functions and jaxprs are equal only to themselves."""
    if isinstance(value, (jex.Jaxpr, jex.ClosedJaxpr)) or callable(value):
        return id(value)
    if isinstance(value, (tuple, list)):
        return tuple(map(_param_key, value))
    return repr(value)


def _on_mesh(
    closed: jex.ClosedJaxpr, mesh: Mesh | AbstractMesh, traced: tuple[tuple[str, int], ...], kept: KeptExceptions | None
) -> jex.ClosedJaxpr:
    """Return a closed jaxpr on a concrete mesh."""
    return jex.ClosedJaxpr(_rebind(closed.jaxpr, mesh, traced, kept), closed.consts)


def _rebind(
    jaxpr: jex.Jaxpr, mesh: Mesh | AbstractMesh, traced: tuple[tuple[str, int], ...], kept: KeptExceptions | None
) -> jex.Jaxpr:
    """Return a jaxpr with the abstract mesh it was traced on replaced by a concrete one, at any depth.

    Only shardings that name devices (``ON_DEVICES``) get the concrete mesh. The others describe types and stay
    abstract.
    """
    abstract = mesh.abstract_mesh

    def value(name: str, old: Any, on_devices: bool) -> Any:
        if isinstance(old, NamedSharding) and isinstance(old.mesh, AbstractMesh):
            if old.mesh.shape_tuple != traced:
                # It comes from the type of a value at another place, whose axes mean nothing on this mesh.
                return NamedSharding(abstract, PartitionSpec())
            manual = jax.sharding.AxisType.Manual in old.mesh.axis_types  # inside shard_map: a type without devices
            return NamedSharding(mesh, old.spec) if on_devices and not manual else old
        if name == "mesh" and isinstance(old, AbstractMesh):
            kinds = zip(old.axis_names, old.axis_types, strict=True)
            manual_axes = {axis: kind for axis, kind in kinds if kind is jax.sharding.AxisType.Manual}
            return abstract.update_axis_types(manual_axes) if manual_axes else mesh  # of a shard_map within another
        if isinstance(old, jex.ClosedJaxpr):
            return _on_mesh(old, mesh, traced, kept)
        if isinstance(old, jex.Jaxpr):
            return _rebind(old, mesh, traced, kept)
        if type(old) in (tuple, list):
            return type(old)(value(name, part, on_devices) for part in old)
        return old

    def params(eqn: Any) -> dict[str, Any]:
        on_devices = eqn.primitive.name in ON_DEVICES
        return {k: value(k, v, on_devices) for k, v in guarded(eqn.params, kept).items()}

    return jaxpr.replace(eqns=[eqn.replace(params=params(eqn)) for eqn in jaxpr.eqns])
