"""Questions of the course and ``pw.check``: answers are computed from the reader's own run or a closed form.

No answer is stored, in the notebook or here, and none depends on how fast this machine is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Number
from typing import Any

from pathways_nb.errors import UsageError
from pathways_nb.run import RanProgram, runs

TOLERANCE = 0.01
"""Relative: 1.78 is an answer to 16/9."""


@dataclass(frozen=True)
class Question:
    """``expected`` computes the answer; ``why`` says of a wrong one what it may have got wrong."""

    expected: Callable[[], Any]
    why: Callable[[Any, Any], str]


class _NotYetError(Exception):
    """The run that an answer is computed from is not there."""


def check(name: str, answer: object) -> bool:
    """Say whether ``answer`` to the question ``name`` is right, and if not, why it may be wrong.

    Args:
        name: of the question, as the notebook gives it.
        answer: a number or a text; ``...`` stands for none yet.

    Returns:
        Whether it is right, for whoever grades.

    Raises:
        UsageError: there is no such question.
    """
    if name not in QUESTIONS:
        raise UsageError(f"check({name!r}): there is no such question; there are {', '.join(QUESTIONS)}.")
    right, text = _judge(QUESTIONS[name], answer)
    print(f"{name}: {text}")
    return right


def _judge(question: Question, answer: object) -> tuple[bool, str]:
    if answer is ...:
        return False, "not answered yet. Put your answer in place of the dots."
    try:
        expected = question.expected()
    except _NotYetError as error:
        return False, str(error)
    if isinstance(expected, Number) and not isinstance(answer, Number):
        return False, f"{answer!r} is a {type(answer).__name__}; a number is wanted."
    if _same(answer, expected):
        return True, "right."
    return False, f"{answer!r} is not it. {question.why(answer, expected)}"


def _same(answer: Any, expected: Any) -> bool:
    if isinstance(expected, int):
        return bool(answer == expected)
    return (
        math.isclose(answer, expected, rel_tol=TOLERANCE) if isinstance(expected, float) else bool(answer == expected)
    )


def _program(run: str, name: str) -> RanProgram:
    """The reader's own program, from the cell ``%%pathways --run RUN``."""
    found = [program for program in (runs[run].programs if run in runs else []) if program.graph.name == name]
    if not found:
        raise _NotYetError(f"run the cell that begins with %%pathways and has --run {run} first: the answer is in it.")
    return found[-1]


def _crossings() -> int:
    return sum(route == "DCN" for route in _program("figure2", "f").routes.values())


def _why_crossings(answer: Any, expected: int) -> str:
    graph = _program("figure2", "f").graph
    if answer == len(list(graph.edges())):
        return "That counts all edges. Which of them lead from one place to the other?"
    if answer == sum(node.kind == "computation" for node in graph.nodes):
        return "That counts computations. A value crosses only where producer and consumer are on different slices."
    return "Follow each value from the place that makes it to the place that reads it; arguments come from the host."


def _microbatches() -> int:
    graph = _program("train", "train_step").graph
    first = next(node.place for node in graph.nodes if node.kind == "computation")
    return sum(node.kind == "computation" and node.place is first and "(bwd)" not in node.name for node in graph.nodes)


def _speedup() -> float:
    m = _microbatches()
    return 2 * m / (m + 1)


def _why_speedup(answer: Any, expected: float) -> str:
    m = _microbatches()
    if math.isclose(answer, 2.0, rel_tol=TOLERANCE):
        return "Two islands would halve the time if both worked from the first moment. When does the second begin?"
    if math.isclose(answer, (m + 1) / (2 * m), rel_tol=TOLERANCE):
        return "That is parallel over sequential; the question is how many times faster, the other way round."
    if math.isclose(answer, m, rel_tol=TOLERANCE):
        return f"{m} microbatches keep the islands busy, but there are only two islands to share the work."
    return f"Count turns: {m} microbatches through 2 stages one after another, and with both stages at work at once."


QUESTIONS: dict[str, Question] = {
    "01.crossings": Question(_crossings, _why_crossings),
    "01.speedup": Question(_speedup, _why_speedup),
}
