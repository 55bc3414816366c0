"""Questions of notebook 01: the graph of the quickstart's program, and the speed-up of its pipeline.

Both answers are read from the graphs that the reader's own cells recorded.
"""

from __future__ import annotations

from typing import Any

from pathways_nb.course.question import Question, is_near, program_of


def _crossings() -> int:
    """Return how many edges cross from one island to another."""
    return sum(route == "DCN" for route in program_of("figure2", "f").routes.values())


def _why_crossings(answer: Any, expected: int) -> str:
    graph = program_of("figure2", "f").graph
    if answer == len(list(graph.edges())):
        return "That counts all edges. Which of them lead from one place to the other?"
    if answer == sum(node.kind == "computation" for node in graph.nodes):
        return "That counts computations. A value crosses only where producer and consumer are on different slices."
    return "Follow each value from the place that makes it to the place that reads it; arguments come from the host."


def _microbatches() -> int:
    """Return the number of microbatches: forward computations on the place of the first stage."""
    graph = program_of("train", "train_step").graph
    # The first computation of the program is that of the first stage.
    first = next(node.place for node in graph.nodes if node.kind == "computation")
    return sum(node.kind == "computation" and node.place is first and "(bwd)" not in node.name for node in graph.nodes)


def _speedup() -> float:
    """Return 2m/(m+1): 2m turns one after another, or m+1 turns with both stages at work."""
    m = _microbatches()
    return 2 * m / (m + 1)


def _why_speedup(answer: Any, expected: float) -> str:
    m = _microbatches()
    if is_near(answer, 2.0):
        return "Two islands would halve the time if both worked from the first moment. When does the second begin?"
    if is_near(answer, (m + 1) / (2 * m)):
        return "That is parallel over sequential; the question is how many times faster, the other way round."
    if is_near(answer, m):
        return f"{m} microbatches keep the islands busy, but there are only two islands to share the work."
    return f"Count turns: {m} microbatches through 2 stages one after another, and with both stages at work at once."


QUESTIONS = {
    "01.crossings": Question(_crossings, _why_crossings),
    "01.speedup": Question(_speedup, _why_speedup),
}
