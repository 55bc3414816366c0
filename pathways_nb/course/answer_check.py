"""``pw.check``: compare a reader's answer with one that is computed now, and give a hint if it is wrong.

No answer is stored in the notebook or here. It is computed from the reader's own run or from a closed form, so a reader
who changed a size gets the answer for that size. Hints recognise typical mistakes and never contain the answer (a test
checks this).
"""

from __future__ import annotations

from numbers import Number

from pathways_nb.course import (
    adopted_step_questions,
    cluster_questions,
    dispatch_questions,
    expert_questions,
    fsdp_questions,
    memory_questions,
    pipeline_questions,
    quickstart_questions,
    research_questions,
    tenant_questions,
    token_slice_questions,
    two_thousand_questions,
)
from pathways_nb.course.question import NotYetError, Question, is_near
from pathways_nb.errors import UsageError
from pathways_nb.util.words import a_type_of

QUESTIONS: dict[str, Question] = {
    **quickstart_questions.QUESTIONS,
    **dispatch_questions.QUESTIONS,
    **tenant_questions.QUESTIONS,
    **memory_questions.QUESTIONS,
    **expert_questions.QUESTIONS,
    **two_thousand_questions.QUESTIONS,
    **pipeline_questions.QUESTIONS,
    **token_slice_questions.QUESTIONS,
    **fsdp_questions.QUESTIONS,
    **research_questions.QUESTIONS,
    **cluster_questions.QUESTIONS,
    **adopted_step_questions.QUESTIONS,
}


def check(name: str, answer: object) -> bool:
    """Print whether an answer is right, and if not, a hint about what may be wrong with it.

    Args:
        name: name of the question, as the notebook gives it.
        answer: a number or a text; ``...`` stands for no answer yet.

    Returns:
        Whether it is right, for automatic grading.

    Raises:
        UsageError: there is no such question.
    """
    if name not in QUESTIONS:
        raise UsageError(f"check({name!r}): there is no such question; there are {', '.join(QUESTIONS)}.")
    right, text = _judge(QUESTIONS[name], answer)
    print(f"{name}: {text}")
    return right


def _judge(question: Question, answer: object) -> tuple[bool, str]:
    """Return whether an answer is right, and what to tell the reader."""
    # Notebooks are stored with dots as answers.
    if answer is ...:
        return False, "not answered yet. Put your answer in place of the dots."
    try:
        expected = question.expected()
    # Not wrong, but not there yet: the text names the cell to run first.
    except NotYetError as error:
        return False, str(error)
    if isinstance(expected, Number) and not isinstance(answer, Number):
        return False, f"{answer!r} is {a_type_of(answer)}; a number is wanted."
    # Counts and texts exactly, other numbers nearly: 1.01 × 100 is another count.
    if is_near(answer, expected) if isinstance(expected, float) else answer == expected:
        return True, "right."
    return False, f"{answer!r} is not it. {question.why(answer, expected)}"
