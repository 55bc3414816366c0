"""What can be checked of a pass that returns a graph: that it can run, and that it exchanges what it did before."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pathways_nb.errors import PlanError
from pathways_nb.parallel.fsdp.step_graph import CollectiveOp, StepGraph


def check_graph(name: str, before: StepGraph, after: Any) -> None:
    """Check the graph that a pass returned.

    What single operations compute is not compared.

    Args:
        name: of the pass.
        before: the graph that it was given.
        after: what it returned.

    Raises:
        PlanError: naming the pass and what is wrong.
    """
    if not isinstance(after, StepGraph):
        raise PlanError(f"pass {name!r} returned {type(after).__name__}, not the StepGraph after the pass.")
    try:
        after.check()
    except PlanError as error:
        raise PlanError(f"pass {name!r}: {error}") from None
    # What the step is called with and returns is the same under every plan, so a pass changes operations only.
    for part in ("parameters", "shards", "batch", "results", "gradients", "joins"):
        if getattr(before, part) != getattr(after, part):
            raise PlanError(
                f"pass {name!r} returned a graph with other {part} than it was given; change its operations."
            )
    if (before.flat.inputs, before.flat.outputs) != (after.flat.inputs, after.flat.outputs):
        raise PlanError(f"pass {name!r} returned a graph with other inputs or outputs than it was given.")
    # ``check`` asks of what is read; nothing in the list reads the outputs.
    made = {*after.flat.inputs, *after.flat.constants, *(value for op in after.ops for value in op.outputs)}
    if not made.issuperset(after.flat.outputs):
        missing = next(value for value in after.flat.outputs if value not in made)
        what = _outputs_in_words(before).get(missing, "the loss")
        raise PlanError(f"pass {name!r} returned a graph in which nothing makes {what}.")
    _check_exchanges(name, before, after)


def _outputs_in_words(graph: StepGraph) -> dict[int, str]:
    """Return the words for the outputs of a step that are gradients, by value."""
    return {value: f"the gradient of {graph.names([param])[0]}" for param, value in graph.gradients.items()}


def _check_exchanges(name: str, before: StepGraph, after: StepGraph) -> None:
    """Check that the same parameters are gathered, and that each output has come through the same reductions."""
    gathered = [
        {param for op in graph.collectives if op.is_gather for param in op.carries} for graph in (before, after)
    ]
    if gathered[0] != gathered[1]:
        (first, *_) = before.names(sorted(gathered[0] ^ gathered[1]))
        word = "no longer" if len(gathered[0]) > len(gathered[1]) else "also"
        raise PlanError(f"pass {name!r} returned a graph that {word} gathers {first}; a pass computes the same.")
    passed = _reductions(before), _reductions(after)
    what = _outputs_in_words(before)
    for value in before.flat.outputs:
        # Counted by name and axis, not by collective: buckets are other collectives that reduce the same.
        old, new = (Counter(one.get(value, ())) for one in passed)
        if old != new:
            counts = " and ".join(f"{sum(side.values())}" for side in (new, old))
            raise PlanError(
                f"pass {name!r} returned a graph in which {what.get(value, 'the loss')} comes through other reductions "
                f"({counts} before); a pass computes the same."
            )


def _reductions(graph: StepGraph) -> dict[int, list[tuple[str, str]]]:
    """Return, by value, the reductions on the way to it, each by name and axis."""
    found: dict[int, frozenset[CollectiveOp]] = {}
    for op in graph.ops:
        # As sets of collectives: a reduction that reaches a value on two ways has reduced it once.
        passed = frozenset[CollectiveOp]().union(*(found[value] for value in op.inputs if value in found))
        if isinstance(op, CollectiveOp) and not op.is_gather:
            passed |= {op}
        if passed:
            found.update(dict.fromkeys(op.outputs, passed))
    return {value: [(op.name, op.axis) for op in passed] for value, passed in found.items()}
