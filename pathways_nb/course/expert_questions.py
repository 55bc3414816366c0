"""Questions of notebook 05, a mixture of experts: how many arrays are sent, and how many rows are computed.

Both answers are read from the reader's own training step, whose calls depend on the experts chosen.
"""

from __future__ import annotations

from typing import Any

from pathways_nb.course.question import Question, is_near, program_of
from pathways_nb.results.opened_runs import runs
from pathways_nb.results.run import Run


def _step() -> Run:
    """Return the run of one training step with only the chosen experts."""
    program_of("sparse", "begin")
    return runs["sparse"]


def _sent() -> int:
    """Return how many arrays were sent to another place; what came from the host is not counted."""
    events = _step().events
    return len(events.select(events.is_("kind", "transfer") & ~events.is_("route", "host")))


def _expert_rows() -> list[int]:
    """Return the number of rows of each chosen expert, padding included: its capacity."""
    return [
        program.graph.values[node.outputs[0]].shape[0]
        for program in _step().programs
        for node in program.graph.nodes
        if node.name == "expert"
    ]


def _routed() -> tuple[int, int]:
    """Return the numbers of tokens and of experts, which are the shape of the gates."""
    graph = program_of("sparse", "combine").graph
    tokens, experts = next(graph.values[node.outputs[0]].shape for node in graph.nodes if node.name == "gates")
    return tokens, experts


def _why_sent(answer: Any, expected: int) -> str:
    chosen, (_, experts) = len(_expert_rows()), _routed()
    if answer == 2 * chosen:
        return "That is the forward half: in the backward pass, gradients travel the same edges in the other direction."
    if answer in (2 * experts, 4 * experts):
        return "That counts all experts. Which of them are called?"
    return "Count for one chosen expert: what it receives and sends, and the gradient of each. Then count the experts."


def _more_rows() -> float:
    """Return rows computed with all experts (each has room for every token) over rows of the chosen experts."""
    tokens, experts = _routed()
    return tokens * experts / sum(_expert_rows())


def _why_more_rows(answer: Any, expected: float) -> str:
    chosen, (_, experts) = len(_expert_rows()), _routed()
    if is_near(answer, experts):
        return "That compares with the number of tokens. A chosen expert computes rows of padding as well."
    if is_near(answer, experts / chosen):
        return "That compares numbers of experts. How many rows does each expert compute in the two cases?"
    if is_near(answer * expected, 1.0):
        return "That is the ratio the other way round."
    return "In all, every expert has room for every token; in waits, each chosen one has the capacity choose() printed."


QUESTIONS = {
    "05.transfers": Question(_sent, _why_sent),
    "05.rows": Question(_more_rows, _why_more_rows),
}
