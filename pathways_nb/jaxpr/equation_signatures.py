"""Numbers of equations: two get the same one if they compute the same from operands of the same types.

Names, checkpoint policies and derivative rules say nothing of what an equation computes once it has been traced, so
they are left out; equations that a loop in Python wrote differ in nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable
from typing import Any

from pathways_nb.jaxpr.jaxpr_digest import MOST_BYTES, SAY_NOTHING

_SAY_NOTHING = SAY_NOTHING | {"name", "name_and_src_info"}
"""Parameters that do not change what an equation computes."""
_OF_TYPES = ("shape", "dtype", "vma", "memory_space", "inner_aval")
"""Attributes of abstract values that are compared; not ``weak_type``, which a literal and a variable may not share."""


class Signatures:
    """Numbers of equations and of jaxprs, by what they compute. Numbers of one object are comparable."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        # By identity, with the objects, so that no other object takes their place in memory.
        self._types: dict[int, tuple[Any, int]] = {}
        self._jaxprs: dict[int, tuple[Any, int, int]] = {}

    def of(self, eqn: Any) -> int:
        """Return the number of an equation; values of literals and what operands are play no part."""
        types = [self._type(atom.aval) for atom in (*eqn.invars, *eqn.outvars)]
        return self.number((eqn.primitive.name, len(eqn.invars), *types, *self._params(eqn.params)))

    def size(self, eqn: Any) -> int:
        """Return how many equations an equation stands for, those of the jaxprs in its parameters included."""
        return 1 + sum(self.of_jaxpr(jaxpr)[1] for jaxpr in _jaxprs(eqn.params.values()))

    def of_jaxpr(self, jaxpr: Any) -> tuple[int, int]:
        """Return the number of a jaxpr, closed or open, and how many equations it holds at any depth."""
        if (found := self._jaxprs.get(id(jaxpr))) is not None:
            return found[1:]
        inner, consts = getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())
        local: dict[Any, int] = {}
        for var in (*inner.constvars, *inner.invars):
            local[var] = len(local)

        def place(atom: Any) -> Hashable:
            if hasattr(atom, "val"):
                return self._type(atom.aval), self._value(atom.val)
            return local[atom]

        size = 0
        parts: list[Hashable] = [self._type(var.aval) for var in (*inner.constvars, *inner.invars)]
        parts.append(self._value(tuple(consts)))
        for eqn in inner.eqns:
            parts.append(self.number((self.of(eqn), *map(place, eqn.invars))))
            for var in eqn.outvars:
                local[var] = len(local)
            size += self.size(eqn)
        number = self.number((*parts, *map(place, inner.outvars)))
        self._jaxprs[id(jaxpr)] = jaxpr, number, size
        return number, size

    def without_types(self, eqn: Any) -> int:
        """Return the number of an equation's primitive and parameters, whatever its operands."""
        return self.number((eqn.primitive.name, *self._params(eqn.params)))

    def number(self, key: Hashable) -> int:
        """Return the number of a key."""
        return self._numbers.setdefault(key, len(self._numbers))

    def _type(self, aval: Any) -> int:
        found = self._types.get(id(aval))
        if found is None:
            fields = tuple(getattr(aval, name, None) for name in _OF_TYPES)
            # Of its sharding the axes of explicit meshes: whether there is a mesh at all changes no type.
            fields = (*fields, str(getattr(getattr(aval, "sharding", None), "spec", None)))
            key = (type(aval).__name__, *fields) if fields[0] is not None else str(aval)
            found = self._types[id(aval)] = aval, self.number(key)
        return found[1]

    def _params(self, params: Any) -> Iterable[Hashable]:
        return ((name, self._value(value)) for name, value in sorted(params.items()) if name not in _SAY_NOTHING)

    def _value(self, value: Any) -> Hashable:
        """Return a parameter, or a constant, in a form that is equal for equal contents."""
        if hasattr(value, "eqns"):
            return "jaxpr", self.of_jaxpr(value)[0]
        if isinstance(value, (tuple, list)):
            return (type(value).__name__, *map(self._value, value))
        if isinstance(value, dict):
            return tuple((str(name), self._value(one)) for name, one in value.items())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = (field.name for field in dataclasses.fields(value) if field.name not in _SAY_NOTHING)
            return (type(value).__name__, *(self._value(getattr(value, name, None)) for name in fields))
        if hasattr(value, "tobytes") and hasattr(value, "nbytes"):
            if value.nbytes <= MOST_BYTES:
                return str(value.dtype), tuple(value.shape), value.tobytes()
            return id(value)
        try:
            hash(value)
        except TypeError:
            return id(value)
        # 1, 1.0 and True are equal, and not the same parameter.
        return (type(value).__name__, value) if isinstance(value, (bool, int, float)) else value


def _jaxprs(values: Iterable[Any]) -> Iterable[Any]:
    """Yield the jaxprs among parameters."""
    for value in values:
        if hasattr(value, "eqns"):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _jaxprs(value)
