"""Questions of notebook 11: how many messages a program costs, and what is lost with a host."""

from __future__ import annotations

from typing import Any

from pathways_nb.course.question import Question

_ISLANDS, _HOSTS, _NODES = 3, 2, 128
"""The program in the question: a static chain over islands of several hosts."""


def _why_messages(answer: Any, expected: float) -> str:
    if answer == _NODES:
        return "That would be one message for each node, as in sequential dispatch; a static program goes out whole."
    if answer == _NODES * _HOSTS:
        return "A message names a range of the island's order, not a single node."
    if answer == _ISLANDS:
        return "Every host of an island launches its part of each node, so each of them needs the message."
    return "Each host gets the whole range of steps of its island in one message. How many hosts are there?"


# A static program goes out whole: one message for each host, however many nodes it has.
QUESTIONS = {"11.messages": Question(lambda: _ISLANDS * _HOSTS, _why_messages)}
