"""The trip count of a ``while`` in a jaxpr, where a counter determines it: ``fori_loop`` and loops written like it.

A ``while`` states no length, but ``fori_loop`` with traced bounds becomes one, and counting its body once would
under-count its work by its length. So its condition and body are matched against one pattern: a counter that changes
by a constant, compared with a bound that does not change. Any other loop has an unknown length, and the caller notes
that. A ``scan`` states its length and is not read here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_EXCHANGED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
"""The comparison that says the same with its two operands exchanged."""


def trips(params: Any, known: Sequence[Any]) -> int | None:
    """Return how often the body of a ``while`` runs; ``None`` if that is not known before running.

    The condition must compare a carried number with another number that does not change, and the body must add a
    constant to the first number or subtract one from it.

    Args:
        params: the parameters of the ``while`` equation.
        known: for each input of the equation its value if that is a known number, else ``None``.
    """
    # The inputs of a ``while`` are the constants of its condition, those of its body, and the carried values.
    in_condition, in_body = params["cond_nconsts"], params["body_nconsts"]
    start = in_condition + in_body
    condition, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
    tests = [eqn for eqn in condition.eqns if eqn.outvars[0] is condition.outvars[0]]
    # A condition of several parts ("not converged and i < n") may end the loop earlier.
    if len(tests) != 1 or tests[0].primitive.name not in _EXCHANGED:
        return None

    def operand(atom: Any) -> tuple[Any, Any]:
        """Return an operand's first value and what one iteration adds to it; ``None`` for what is not known."""
        # A literal, which has ``val`` and does not change.
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
    """Return what one iteration adds to a carried value; ``None`` if that is not a constant."""
    before, after = body.invars[consts + carried], body.outvars[carried]
    if after is before:
        return 0
    for eqn in body.eqns:
        if eqn.outvars[0] is after and eqn.primitive.name in ("add", "sub"):
            first, second = eqn.invars
            # ``1 + i`` as well as ``i + 1``; but ``1 - i`` is no step.
            if eqn.primitive.name == "add" and hasattr(first, "val"):
                first, second = second, first
            if first is before and hasattr(second, "val"):
                return second.val if eqn.primitive.name == "add" else -second.val
    return None


def _count(comparison: str, left: tuple[Any, Any], right: tuple[Any, Any]) -> int | None:
    """Return the number of iterations, each operand given by its first value and what one iteration adds to it."""
    if None in (*left, *right):
        return None
    # ``n > i`` says the same as ``i < n``: put what changes on the left.
    if right[1] and not left[1]:
        left, right, comparison = right, left, _EXCHANGED[comparison]
    (first, step), (bound, moved) = left, right
    if moved or not step:
        return None
    up = comparison in ("lt", "le")
    # A counter that moves away from its bound runs never or for ever.
    if (step > 0) != up:
        return None
    distance = float(bound - first) if up else float(first - bound)
    whole = distance / abs(float(step))
    # ``<=`` and ``>=`` run once more at the bound itself; a first test that fails gives a distance below 0.
    return max(0, math.floor(whole) + 1 if comparison in ("le", "ge") else math.ceil(whole))
