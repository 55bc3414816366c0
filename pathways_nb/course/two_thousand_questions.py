"""Questions of notebook 06: how long a computation must last, and how many clients it takes, to hide a call."""

from __future__ import annotations

import math
from typing import Any

from pathways_datasets import published
from pathways_nb.course.question import TOLERANCE, Question

_FEW, _MANY, _ASKED = 16, 512, 128
"""Hosts of the paper's two points, and of the one that is asked for."""
_WORK = 0.33e-3
"""Seconds of a computation in the second question."""


def _call(hosts: int) -> float:
    """Seconds of a call on the line through Figure 6's points."""
    low, high = (published("pathways")["figure 6"][f"{hosts} hosts"]["value"] for hosts in (_FEW, _MANY))
    return low + (high - low) * (hosts - _FEW) / (_MANY - _FEW)


def _smallest() -> float:
    return 1e3 * _call(_ASKED)


def _why_smallest(answer: Any, expected: float) -> str:
    if math.isclose(answer, 1e3 * _call(_MANY) * _ASKED / _MANY, rel_tol=TOLERANCE):
        return "That is in proportion to the larger point. The line does not go through zero: what does no host cost?"
    if math.isclose(answer, 1e3 * _call(_FEW) * _ASKED / _FEW, rel_tol=TOLERANCE):
        return "That is in proportion to the smaller point. The line does not go through zero: what does no host cost?"
    if math.isclose(answer, expected / 1e3, rel_tol=TOLERANCE):
        return "In milliseconds, please."
    return "From 16 hosts to 512 it grows by so much; how much is that for each host more, and how many more are there?"


def _clients() -> int:
    return math.ceil(_call(_FEW) / _WORK)


def _why_clients(answer: Any, expected: int) -> str:
    if answer == expected - 1:
        return "Nearly, but then the cores still wait a little in every round."
    if math.isclose(answer, _call(_FEW) / _WORK, rel_tol=TOLERANCE):
        return "That fills them exactly; how many whole clients is that?"
    if answer == 1:
        return "One client's next computation comes only when its thread is through with the call; meanwhile all stops."
    return "How many computations fit into the time of one call? Each must come from another client."


QUESTIONS = {
    "06.smallest": Question(_smallest, _why_smallest),
    "06.clients": Question(_clients, _why_clients),
}
