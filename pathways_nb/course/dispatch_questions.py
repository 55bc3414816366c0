"""Questions of notebook 02: the makespan of a chain of stages under sequential and parallel dispatch.

Closed forms in milliseconds: each message of the controller takes ``_MESSAGE``, each stage ``_STAGE``. Sequential
dispatch sends a message for each stage after the stage before it; parallel dispatch sends all messages at once
(Pathways, section 4.5 and Fig. 4). The notebook emulates the message's time, so the forms hold on any machine.
"""

from __future__ import annotations

from typing import Any

from pathways_nb.course.question import Question, is_near

_STAGE = _MESSAGE = 5.0
_STAGES, _MORE_STAGES = 8, 20
_SLACK = 1.1
"""Sequential dispatch counts as hidden if it takes at most a tenth longer than parallel dispatch."""


def _in_sequence(stages: int, stage: float = _STAGE) -> float:
    """Return n · (message + stage): each stage waits for a message that leaves when the stage before it is done."""
    return stages * (_MESSAGE + stage)


def _in_parallel(stages: int, stage: float = _STAGE) -> float:
    """Return message + n · stage: all messages travel at the same time, during the wait of the first stage."""
    return _MESSAGE + stages * stage


def _why_sequential(answer: Any, expected: float) -> str:
    if is_near(answer, _MORE_STAGES * _STAGE):
        return "That counts the stages alone. Each stage also waits for a message of its own."
    if is_near(answer, _in_parallel(_MORE_STAGES)):
        return "That counts one message for all stages; in sequence each stage is sent when the one before it is done."
    return f"Each of the {_MORE_STAGES} stages costs the same: what happens between the end of one and of the next?"


def _why_parallel(answer: Any, expected: float) -> str:
    if is_near(answer, _MORE_STAGES * _STAGE):
        return "That counts the stages alone. The first of them cannot begin before it has been sent."
    if is_near(answer, expected + _MESSAGE):
        return "There are two messages, one to each island, but both are on their way at the same time."
    if is_near(answer, _in_sequence(_MORE_STAGES)):
        return "That is sequential dispatch. How many messages does the last stage wait for now?"
    return "All messages leave at the beginning; the stages still need each other's results."


def _why_hidden(answer: Any, expected: float) -> str:
    if is_near(answer, _MESSAGE / (_SLACK - 1)):
        return "Nearly: that compares with stages that wait for no message at all. Parallel dispatch waits for one."
    if is_near(answer, expected / 1000):
        return "In milliseconds, please."
    return f"For n stages of t ms, when is n·({_MESSAGE:g} + t) at most {_SLACK} times {_MESSAGE:g} + n·t?"


def _why_fused(answer: Any, expected: float) -> str:
    if is_near(answer, _in_sequence(_STAGES)):
        return "That is the chain as it was. How many nodes are left, and how many messages?"
    if is_near(answer, _in_parallel(_STAGES)):
        return "That is parallel dispatch. In sequence the second node is sent when the first is done."
    return "Each fused node lasts as long as its stages together, and waits for one message."


QUESTIONS = {
    "02.sequential": Question(lambda: _in_sequence(_MORE_STAGES), _why_sequential),
    "02.parallel": Question(lambda: _in_parallel(_MORE_STAGES), _why_parallel),
    # n · (m + t) = s · (m + n · t) for the slack s, which is t = (n − s) · m / ((s − 1) · n).
    "02.hidden": Question(lambda: (_STAGES - _SLACK) * _MESSAGE / ((_SLACK - 1) * _STAGES), _why_hidden),
    # Two nodes with half of the stages each: two messages, one after the other, and the same work.
    "02.fused": Question(lambda: 2 * (_MESSAGE + _STAGES / 2 * _STAGE), _why_fused),
}
