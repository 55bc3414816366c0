"""Questions of notebook 03: the share of a tenant, and the chance that two devices choose compatible orders.

The second answer counts pairs of orders with ``controller.orders``, the check that ``pw.check_orders`` runs.
"""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

from pathways_nb.controller.orders import find_cycle
from pathways_nb.course.question import Question, is_near

_SHARES = (3, 1, 2, 2)
"""Shares of the four tenants in the question, which asks for the first one's fraction."""
_GANGS = ("ann", "bob", "eve")


def _why_part(answer: Any, expected: float) -> str:
    if is_near(answer, 1 / len(_SHARES)):
        return "That would be an equal part for each of the four; what do the shares say?"
    if is_near(answer, _SHARES[0] / sum(_SHARES[1:])):
        return "That is its share over those of the others; divide by the sum of all, in which its own counts, too."
    if is_near(answer, 100 * expected):
        return "Write it as a fraction: a number between 0 and 1."
    return "All four always have work, so no tenant gets more than its share: compare a share with the sum of all."


def _luck() -> float:
    """Return the fraction of pairs of random orders on two devices in which no gangs wait for each other for ever."""
    orders = list(permutations(_GANGS))
    # Each device runs its gangs in its own order: they wait for ever exactly where the orders have a cycle.
    fitting = sum(find_cycle(dict(enumerate(pair))) is None for pair in product(orders, repeat=2))
    return fitting / len(orders) ** 2


def _why_luck(answer: Any, expected: float) -> str:
    if is_near(answer, 1 / 2):
        return "That is right for two gangs; with three there are more orders."
    if is_near(answer, 1 - expected):
        return "That is the chance that they do not fit."
    if is_near(answer, expected**2):
        return "Any order is good on the first device; only that of the second device has to be the same."
    return "Whatever the first device got, how many orders could the second have got, and how many of them fit?"


QUESTIONS = {
    # All four always have work, so each gets its share of the sum.
    "03.part": Question(lambda: _SHARES[0] / sum(_SHARES), _why_part),
    "03.luck": Question(_luck, _why_luck),
}
