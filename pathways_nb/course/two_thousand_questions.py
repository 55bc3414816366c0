"""Questions of notebook 06: the length of a computation, and the number of clients, that hide the cost of a call.

A call's cost is interpolated between the two points of the paper's Figure 6 that ``pathways_datasets`` holds.
Two points determine the line exactly, so it is an illustration, not a fit that was tested.
"""

from __future__ import annotations

import math
from typing import Any

from pathways_datasets import published
from pathways_nb.course.question import Question, is_near

_FEW, _MANY, _ASKED = 16, 512, 128
"""Hosts of the two points in the paper, and of the one that the question asks for."""
_WORK = 0.33e-3
"""Seconds of a computation in the second question."""


def _call(hosts: int) -> float:
    """Return the seconds of a call on the line through the two points."""
    low, high = (published("pathways")["figure 6"][f"{hosts} hosts"]["value"] for hosts in (_FEW, _MANY))
    return low + (high - low) * (hosts - _FEW) / (_MANY - _FEW)


def _why_smallest(answer: Any, expected: float) -> str:
    if is_near(answer, 1e3 * _call(_MANY) * _ASKED / _MANY):
        return "That is in proportion to the larger point. The line does not go through zero: what do 0 hosts cost?"
    if is_near(answer, 1e3 * _call(_FEW) * _ASKED / _FEW):
        return "That is in proportion to the smaller point. The line does not go through zero: what do 0 hosts cost?"
    if is_near(answer, expected / 1e3):
        return "In milliseconds, please."
    return "How much is added from 16 hosts to 512? How much is that for each host more, and how many more are there?"


def _why_clients(answer: Any, expected: int) -> str:
    if answer == expected - 1:
        return "Nearly, but then the cores still wait a little in every round."
    if is_near(answer, _call(_FEW) / _WORK):
        return "That fills them exactly; how many whole clients is that?"
    if answer == 1:
        return "A client sends its next computation only when its thread is back from the call; meanwhile all stops."
    return "How many computations fit into the time of one call? Each must come from another client."


QUESTIONS = {
    # A computation hides a call if it takes as long, in milliseconds.
    "06.smallest": Question(lambda: 1e3 * _call(_ASKED), _why_smallest),
    # Clients whose calls overlap. Rounded up: with one client less the devices still wait in each round.
    "06.clients": Question(lambda: math.ceil(_call(_FEW) / _WORK), _why_clients),
}
