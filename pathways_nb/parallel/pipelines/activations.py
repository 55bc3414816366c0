"""The memory of activations: what each microbatch keeps for its backward pass, and the peak that a schedule gives.

Both are read from a program's graph and its schedule, before anything runs. The controller's own claim
(``Program.peaks``) contains more: parameters, sums of gradients, values on their way, temporaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pathways_nb.parallel.schedules.actions import actions_of
from pathways_nb.parallel.schedules.schedule import Schedule
from pathways_nb.plan.graph import ActionKey, Graph, Node


class KeptValues(NamedTuple):
    """The values that a stage keeps of one microbatch or token slice.

    Args:
        forward: from F until the backward pass, or until I.
        input_gradient: from I until W; none if the backward pass is not split.
    """

    forward: frozenset[int]
    input_gradient: frozenset[int]


def kept_values(graph: Graph) -> dict[ActionKey, KeptValues]:
    """Return the values that are kept of each stage, microbatch and token slice of a pipeline's program.

    The keys and values of token slices are one buffer for each sequence; it is counted with the last slice.
    """
    by_key: dict[ActionKey, dict[str, Node]] = {}
    for node in graph.nodes:
        if node.action:
            operation = node.name.lstrip("0123456789")[0]  # the F of 12F3
            by_key.setdefault(node.action, {})[operation] = node
    # Arguments, such as parameters, are in memory whether a backward pass waits or not.
    given = {value for node in graph.nodes if node.kind == "argument" for value in node.outputs}
    return {key: _kept(parts, given) for key, parts in by_key.items()}


def peaks(schedule: Schedule, graph: Graph) -> list[int]:
    """Return the most bytes of activations that each device of a schedule keeps at once, on all its devices together.

    Args:
        schedule: the order of actions.
        graph: of a program of a pipeline with this schedule.
    """
    kept = kept_values(graph).items()
    found = {key: [sum(graph.values[v].bytes for v in values) for values in one] for key, one in kept}
    highest = []
    for row in schedule.rows:
        held, most = 0, 0
        for action in (action for cell in row for action in actions_of(cell)):
            # As in ``ActionKey``: -1 stands for sequences that are not sliced.
            token_slice = -1 if action.token_slice is None else action.token_slice
            forward, split = found[ActionKey(action.stage, action.microbatch, token_slice)]
            # I frees what F kept and leaves what W reads, which may be more or less; B or W frees what is left.
            held += {"F": forward, "B": -forward, "I": split - forward, "W": -split}[action.operation]
            most = max(most, held)
        highest.append(most)
    return highest


def _kept(parts: Mapping[str, Node], given: set[int]) -> KeptValues:
    forward, whole, split, weights = (parts.get(name) for name in "FBIW")
    assert forward is not None, "every microbatch has a forward pass"
    made = {*forward.inputs, *forward.outputs} - given
    later = {value for node in (whole, split, weights) if node is not None for value in node.inputs}
    # What W reads of F or of I. Parameters and sums of gradients are not in it: no microbatch keeps them.
    left = set(weights.inputs) & (made | set(split.outputs)) if split is not None and weights is not None else set()
    return KeptValues(frozenset(made & later), frozenset(left))
