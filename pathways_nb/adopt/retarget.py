"""A jaxpr that was traced with one mesh, for a mesh of other sizes: axes are known by their names."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.extend.core as jex
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from pathways_nb.errors import ShardingError, UsageError
from pathways_nb.plan import source_lines
from pathways_nb.program.specs import unknown_axes

_PRINTS = ("debug_print", "debug_callback")
_CALLBACKS = ("pure_callback", "io_callback")


class Retargeted(NamedTuple):
    """A jaxpr on another mesh.

    Args:
        jaxpr: it.
        notes: what was left out, once for each line.
    """

    jaxpr: jex.ClosedJaxpr
    notes: Sequence[str]


def retargeted(closed: jex.ClosedJaxpr, mesh: AbstractMesh) -> Retargeted:
    """Return a jaxpr whose layouts are on a mesh; prints are left out.

    Raises:
        ShardingError: a layout names an axis that the mesh lacks.
        UsageError: it calls back to the host, or has code per shard for other sizes.
    """
    notes: dict[str, None] = {}
    jaxpr = _Retarget(mesh, notes).closed(closed)
    return Retargeted(jaxpr, tuple(notes))


def on_mesh(closed: jex.ClosedJaxpr, mesh: AbstractMesh) -> jex.ClosedJaxpr:
    """Return a jaxpr that is run, with its layouts on a mesh of the same sizes; it still prints and calls back."""
    return _Retarget(mesh, {}, runs=True).closed(closed)


def with_jaxprs(
    value: Any, change: Callable[[jex.Jaxpr], jex.Jaxpr], other: Callable[[Any], Any] = lambda one: one
) -> Any:
    """Return a jaxpr, or a parameter of an equation, in which every jaxpr is changed.

    Args:
        value: such as a closed jaxpr, or a tuple of branches; it is returned itself if nothing in it changes.
        change: returns what takes the place of a jaxpr.
        other: returns what takes the place of anything else.
    """
    if isinstance(value, jex.ClosedJaxpr):
        changed = change(value.jaxpr)
        return value if changed is value.jaxpr else jex.ClosedJaxpr(changed, value.consts)
    if isinstance(value, jex.Jaxpr):
        return change(value)
    if type(value) in (tuple, list):
        parts = [with_jaxprs(one, change, other) for one in value]
        return value if all(map(operator.is_, parts, value)) else type(value)(parts)
    return other(value)


class _Retarget:
    """Replaces the meshes in a jaxpr.

    Args:
        mesh: that replaces them.
        notes: what is left out; filled in.
        runs: whether it is to run, with all that it says to the host.
    """

    def __init__(self, mesh: AbstractMesh, notes: dict[str, None], runs: bool = False):
        self.mesh, self.notes, self.runs = mesh, notes, runs
        self._changed: dict[int, tuple[jex.Jaxpr, jex.Jaxpr]] = {}
        """What took the place of each jaxpr, by its identity: one that many equations call stays one."""

    def closed(self, found: jex.ClosedJaxpr) -> jex.ClosedJaxpr:
        """Return a closed jaxpr on the mesh."""
        return with_jaxprs(found, self.jaxpr)

    def jaxpr(self, found: jex.Jaxpr) -> jex.Jaxpr:
        """Return a jaxpr on the mesh; the same one if nothing in it changes."""
        if (known := self._changed.get(id(found))) is None:
            known = self._changed[id(found)] = found, self._anew(found)
        return known[1]

    def _anew(self, found: jex.Jaxpr) -> jex.Jaxpr:
        eqns = [self._equation(eqn) for eqn in found.eqns if not self._is_left_out(eqn)]
        if len(eqns) == len(found.eqns) and all(map(operator.is_, eqns, found.eqns)):
            return found
        effects = frozenset().union(*(eqn.effects for eqn in eqns)) if len(eqns) < len(found.eqns) else found.effects
        return found.replace(eqns=eqns, effects=effects)

    def _is_left_out(self, eqn: Any) -> bool:
        if self.runs or eqn.primitive.name not in _PRINTS:
            return False
        self.notes[f"what is printed at {_line(eqn)} is left out"] = None
        return True

    def _equation(self, eqn: Any) -> Any:
        name = eqn.primitive.name
        if name in _CALLBACKS and not self.runs:
            raise UsageError(
                f"adopt: {_line(eqn)} calls back to Python ({name}), which no compiler of chips that are not here can "
                f"know. Take it out of the step, or run that part between two steps."
            )
        if name == "shard_map":
            self._check_shards(eqn)
        if name == "device_put" and not self.runs and any(map(_is_on_host, eqn.params["devices"])):
            self.notes[f"what {_line(eqn)} moves to the host's memory may be counted in the chip's as well"] = None
        params = {key: with_jaxprs(value, self.jaxpr, self._value) for key, value in eqn.params.items()}
        effects = eqn.effects
        if effects and not self.runs:
            effects = frozenset(effect for effect in effects if "Debug" not in type(effect).__name__)
        if len(effects) == len(eqn.effects) and all(map(operator.is_, params.values(), eqn.params.values())):
            return eqn
        return eqn.replace(params=params, effects=effects)

    def _check_shards(self, eqn: Any) -> None:
        """Refuse code per shard that was traced for other sizes: its shapes are those of a shard.

        Raises:
            UsageError: naming the line and both meshes.
        """
        wanted = dict(self.mesh.shape_tuple)
        other = {axis: size for axis, size in eqn.params["mesh"].shape_tuple if wanted.get(axis) != size}
        if other:
            raise UsageError(
                f"adopt: the shard_map at {_line(eqn)} was written for a mesh of "
                f"{dict(eqn.params['mesh'].shape_tuple)}, and its shapes are those of a shard, so it is not resized to "
                f"{wanted}. Give a function of the mesh that returns the jitted step: "
                f"pw.adopt(lambda mesh: make_step(mesh), *args, mesh={wanted})."
            )

    def _value(self, value: Any) -> Any:
        """Return a parameter without jaxprs on the mesh."""
        if isinstance(value, NamedSharding):
            return self._layout(value)
        return self.mesh if isinstance(value, Mesh) and value.axis_names else value

    def _layout(self, found: NamedSharding) -> NamedSharding:
        """Return a layout on the mesh.

        Raises:
            ShardingError: it names an axis that the mesh lacks.
        """
        if isinstance(found.mesh, AbstractMesh) and AxisType.Manual in found.mesh.axis_types:
            return found  # inside a shard_map: a type
        if unknown := unknown_axes(found.spec, self.mesh.axis_names):
            raise ShardingError(
                f"adopt: the step divides a value over the axis {unknown[0]!r}, and the mesh has "
                f"{', '.join(self.mesh.axis_names)}. mesh= takes the names of your own axes: give {unknown[0]!r} a "
                f"size there."
            )
        kind = found.memory_kind if _is_on_host(found) else None
        return NamedSharding(self.mesh, found.spec, memory_kind=kind)


def _is_on_host(where: Any) -> bool:
    """Return whether a layout, or a space of memory, is the host's memory."""
    return "host" in str(getattr(where, "memory_kind", where)).lower().replace("unpinned_host", "")


def _line(eqn: Any) -> str:
    """Return the user's line of an equation, in words."""
    return source_lines.equation_line(eqn) or "an unknown line"
