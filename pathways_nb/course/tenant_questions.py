"""Questions of notebook 03: shares and orders."""

from __future__ import annotations

import math
from itertools import permutations, product
from typing import Any

from pathways_nb.controller.orders import find_cycle
from pathways_nb.course.question import TOLERANCE, Question

_SHARES = (3, 1, 2, 2)
"""Of the four tenants in the question; the first one's part is asked for."""
_GANGS = ("ann", "bob", "eve")


def _part() -> float:
    return _SHARES[0] / sum(_SHARES)


def _why_part(answer: Any, expected: float) -> str:
    if math.isclose(answer, 1 / len(_SHARES), rel_tol=TOLERANCE):
        return "That would be an equal part for each of the four; what do the shares say?"
    if math.isclose(answer, _SHARES[0] / sum(_SHARES[1:]), rel_tol=TOLERANCE):
        return "That is its share over those of the others; it takes a part of the whole, in which its own counts, too."
    if math.isclose(answer, 100 * expected, rel_tol=TOLERANCE):
        return "As a part of the whole, please: a number between 0 and 1."
    return "All four always have work, so nobody gets more than promised: compare a share with the sum of all."


def _luck() -> float:
    orders = list(permutations(_GANGS))
    fitting = sum(find_cycle(dict(enumerate(pair))) is None for pair in product(orders, repeat=2))
    return fitting / len(orders) ** 2


def _why_luck(answer: Any, expected: float) -> str:
    if math.isclose(answer, 1 / 2, rel_tol=TOLERANCE):
        return "So it is with two gangs; with three there are more orders."
    if math.isclose(answer, 1 - expected, rel_tol=TOLERANCE):
        return "That is how likely it is that they do not fit."
    if math.isclose(answer, expected**2, rel_tol=TOLERANCE):
        return "Any order is good on the first device; only the second one's has to be the same."
    return "Whatever the first device got, how many orders could the second have got, and how many of them fit?"


QUESTIONS = {
    "03.part": Question(_part, _why_part),
    "03.luck": Question(_luck, _why_luck),
}
