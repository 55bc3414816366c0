"""Questions of notebook 05, a mixture of experts: how many arrays are sent, and how many rows are computed.

Both answers are read from the graph of the reader's own training step, whose shape depends on the experts chosen.
"""

from __future__ import annotations

from typing import Any

from pathways_nb.course.question import Question, is_near, program_of
from pathways_nb.plan.graph import Graph


def _step() -> Graph:
    """Return the graph of the training step with only the chosen experts."""
    return program_of("sparse", "step").graph


def _sent() -> int:
    """Return how many arrays are sent to another place; several nodes of a place that read one array count once."""
    home = {value: node.place for node in _step().nodes if node.place is not None for value in node.outputs}
    # A set: an array that several nodes of a place read is there once.
    read = {(value, node.place) for node in _step().nodes if node.place is not None for value in node.inputs}
    # Arguments have no home: they come from the host and are not counted.
    return sum(value in home and home[value] is not place for value, place in read)


def _expert_rows() -> list[int]:
    """Return the number of rows of each chosen expert, padding included: its capacity."""
    graph = _step()
    return [graph.values[node.outputs[0]].shape[0] for node in graph.nodes if node.name == "expert"]


def _routed() -> tuple[int, int]:
    """Return the numbers of tokens and of experts, which are the shape of the router's mask."""
    graph = _step()
    tokens, experts = next(graph.values[node.outputs[0]].shape for node in graph.nodes if node.name == "mask")
    return tokens, experts


def _why_sent(answer: Any, expected: int) -> str:
    chosen, (_, experts) = len(_expert_rows()), _routed()
    if answer == 2 * chosen:
        return "That is the forward half: in the backward pass, gradients travel the same edges in the other direction."
    if answer in (2 * experts, 4 * experts):
        return "That counts all experts. Which of them are in the graph?"
    if answer == sum(route in ("ICI", "DCN") for route in program_of("sparse", "step").routes.values()):
        return "That counts arrows. An array that a forward and a backward node of one place read is sent there once."
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
