"""Digests of jaxprs: equal for the same operations on the same types with the same constants, in every process.

``str(jaxpr)`` tells the same apart, in several times the time: here a jaxpr that many equations call is read once, and
its digest stands for it. Names of functions count; rules of derivatives, which say nothing of what runs, do not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

SAY_NOTHING = frozenset({
    *("policy", "jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "out_trees"),
    *("debug_info", "src_info"),
})  # fmt: skip
"""Parameters, and fields of parameters, that do not change what an equation computes, nor its name."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
MOST_BYTES = 1 << 16
"""Bytes up to which constants count by their values."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def digest_of(jaxpr: Any) -> str:
    """Return the digest of one jaxpr (``JaxprDigests.of``)."""
    return JaxprDigests().of(jaxpr)


def is_of_this_process(text: str) -> bool:
    """Return whether a text names a function or an object by its address, which is another one in another process."""
    return _ADDRESS.search(text) is not None


def constant_key(constant: Any) -> Hashable:
    """Return what tells a constant apart: how often a loop runs may stand in one. Of a large one that is its shape."""
    if not hasattr(constant, "nbytes"):
        return str(constant)
    kind = np.shape(constant), str(constant.dtype)
    if constant.nbytes > MOST_BYTES or not isinstance(constant.dtype, np.dtype):  # a key of jax.random
        return kind
    return *kind, np.asarray(constant).tobytes().hex()


class JaxprDigests:
    """Digests of several jaxprs, which may share parts."""

    def __init__(self) -> None:
        # By identity, with the objects, so that no other object takes their place in memory.
        self._jaxprs: dict[int, tuple[Any, str]] = {}
        self._texts: dict[Hashable, str] = {}

    def of(self, jaxpr: Any) -> str:
        """Return the digest of a jaxpr, closed or open.

        What is known by its address only, such as a callback, stands behind the digest (``is_of_this_process``).
        """
        if (found := self._jaxprs.get(id(jaxpr))) is None:
            text = self._text(getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ()))
            addresses = "".join(sorted(set(_ADDRESS.findall(text))))
            digest = hashlib.sha256(text.encode()).hexdigest()[:32] + addresses
            found = self._jaxprs[id(jaxpr)] = jaxpr, digest
        return found[1]

    def _text(self, jaxpr: Any, consts: Any) -> str:
        """Return what a jaxpr says; its values are numbered in their order."""
        numbers: dict[Any, int] = {}

        def made(variables: Any) -> str:
            for var in variables:
                numbers[var] = len(numbers)
            return " ".join([self._type(var.aval) for var in variables])

        def given(atoms: Any) -> str:
            return " ".join([
                f"{self._type(one.aval)}={self._value(one.val)}" if hasattr(one, "val") else str(numbers[one])
                for one in atoms
            ])  # fmt: skip

        lines = [made((*jaxpr.constvars, *jaxpr.invars)), *map(self._value, consts)]
        lines += [
            f"{eqn.primitive.name} {given(eqn.invars)} -> {made(eqn.outvars)} {self._params(eqn.params)}"
            for eqn in jaxpr.eqns
        ]
        return "\n".join([*lines, given(jaxpr.outvars)])

    def _type(self, aval: Any) -> str:
        if (found := self._texts.get(aval)) is None:
            fields = (getattr(aval, name, "") for name in ("vma", "memory_space", "inner_aval", "sharding"))
            found = self._texts[aval] = " ".join(map(str, (type(aval).__name__, aval, *fields)))
        return found

    def _params(self, params: Mapping[str, Any]) -> str:
        return ",".join([f"{name}={self._value(params[name])}" for name in sorted(params) if name not in SAY_NOTHING])

    def _value(self, value: Any) -> str:
        """Return a parameter, or a constant, as a text that is equal for equal contents."""
        kind = type(value)
        if kind in _PLAIN:
            return repr(value)
        if hasattr(value, "eqns"):
            return self.of(value)
        if isinstance(value, (tuple, list)):
            return f"{kind.__name__}({','.join(map(self._value, value))})"
        if isinstance(value, dict):
            return f"{{{self._params({str(name): one for name, one in value.items()})}}}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
            return f"{kind.__name__}({self._params(fields)})"
        if hasattr(value, "str_short"):
            return self._type(value)
        if hasattr(value, "tobytes"):
            return str(constant_key(value))
        try:
            known = self._texts.get((kind, value))
        except TypeError:  # not hashable
            return repr(value)
        if known is None:
            known = self._texts[kind, value] = repr(value)
        return known
