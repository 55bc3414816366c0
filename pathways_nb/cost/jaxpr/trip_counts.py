"""How often a ``while`` of a jaxpr runs, where a counter tells: ``fori_loop`` and loops written like it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_TURNED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def trips(params: Any, known: Sequence[Any]) -> int | None:
    """Times the body runs; ``None`` if it cannot be told before running.

    The condition must be one comparison of a carried number with another that stays as it is, and the body must add a
    constant to the first.

    Args:
        params: of the ``while`` equation.
        known: of each of its inputs the number, if it is known, else ``None``.
    """
    in_condition, in_body = params["cond_nconsts"], params["body_nconsts"]
    start = in_condition + in_body
    condition, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
    tests = [eqn for eqn in condition.eqns if eqn.outvars[0] is condition.outvars[0]]
    if len(tests) != 1 or tests[0].primitive.name not in _TURNED:
        return None

    def operand(atom: Any) -> tuple[Any, Any]:
        """Its first value and what one turn adds to it; ``None`` where unknown."""
        if hasattr(atom, "val"):
            return atom.val, 0
        if atom not in condition.invars:
            return None, None
        place = list(condition.invars).index(atom)
        if place < in_condition:
            return known[place], 0
        carried = place - in_condition
        return known[start + carried], _step(body, carried, in_body)

    return _count(tests[0].primitive.name, *map(operand, tests[0].invars))


def _step(body: Any, carried: int, consts: int) -> Any:
    before, after = body.invars[consts + carried], body.outvars[carried]
    if after is before:
        return 0
    for eqn in body.eqns:
        if eqn.outvars[0] is after and eqn.primitive.name in ("add", "sub"):
            first, second = eqn.invars
            if eqn.primitive.name == "add" and hasattr(first, "val"):
                first, second = second, first
            if first is before and hasattr(second, "val"):
                return second.val if eqn.primitive.name == "add" else -second.val
    return None


def _count(comparison: str, left: tuple[Any, Any], right: tuple[Any, Any]) -> int | None:
    if None in (*left, *right):
        return None
    if right[1] and not left[1]:
        left, right, comparison = right, left, _TURNED[comparison]
    (first, step), (bound, moved) = left, right
    if moved or not step:
        return None
    up = comparison in ("lt", "le")
    if (step > 0) != up:
        return None
    distance = float(bound - first) if up else float(first - bound)
    whole = distance / abs(float(step))
    return max(0, math.floor(whole) + 1 if comparison in ("le", "ge") else math.ceil(whole))
