"""``pw.terapipe.plan`` and ``pw.terapipe.evaluate``: the optimal slicing, and any other one under the same cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pathways_nb.errors import UsageError, is_index
from pathways_nb.parallel.terapipe.bound_search import best_scheme
from pathways_nb.parallel.terapipe.problem import Problem
from pathways_nb.parallel.terapipe.recurrence import SlicesByEnd
from pathways_nb.parallel.terapipe.slice_costs import SliceCosts
from pathways_nb.parallel.terapipe.slicing import Slicing, evaluate_scheme
from pathways_nb.util.json_text import shortened


def plan(cost: Any, *, length: int, batch: int = 1, stages: int, granularity: int = 8) -> Slicing:
    """Return the slicing of batch and tokens that a pipeline of equal stages finishes first, exactly.

    The latency is ``sum of t + (K - 1) · max of t`` over all slices (TeraPipe, Li et al., ICML 2021, equation 5). The
    batch is divided into groups of sequences, and each group into token slices.

    Args:
        cost: seconds of a slice on one stage, forward and backward together with what it sends. A function of
            (sequences, tokens, context), called with arrays or else with numbers; or an array of the shape (groups, n,
            n) with n = length / granularity, whose element ``[b - 1, l / granularity - 1, c / granularity]`` is for
            ``b`` sequences, ``l`` tokens of each, after ``c`` tokens; or of the shape (n, n), for single sequences. A
            further column of context n may be there. No group is larger than the array has.
        length: L, tokens of a sequence.
        batch: B, number of sequences.
        stages: K, number of stages.
        granularity: tokens; each slice is a multiple of it.

    Raises:
        UsageError: sizes that do not fit each other, or a cost with holes or negative times.
    """
    problem = Problem(length, batch, stages, granularity)
    costs = SliceCosts(cost, problem)
    scheme = best_scheme(SlicesByEnd(costs), batch, stages)
    # Evaluated again from the cost, so that what is told does not rest on the search.
    return evaluate_scheme(costs, [(size, [units * granularity for units in slices]) for size, slices in scheme])


def evaluate(
    cost: Any, token_slices: Sequence[Any], *, length: int, batch: int = 1, stages: int, granularity: int = 8
) -> Slicing:
    """Return a given slicing with its latency under a cost.

    Args:
        cost: as for ``plan``.
        token_slices: tokens of the slices of each sequence, each of which is a group of its own; or a scheme, a pair
            ``(sequences, token slice lengths)`` for each group.
        length: L, tokens of a sequence.
        batch: B, number of sequences.
        stages: K, number of stages.
        granularity: tokens; each slice is a multiple of it.

    Raises:
        UsageError: slices that do not sum to the length, groups that do not sum to the batch, and as for ``plan``.
    """
    problem = Problem(length, batch, stages, granularity)
    costs = SliceCosts(cost, problem)
    # Plain numbers are the slices of every sequence; pairs say the groups, too.
    scheme = [(1, token_slices)] * batch if all(map(is_index, token_slices)) else list(token_slices)
    for size, tokens in scheme:
        _check_group(costs, size, tokens)
    if (sequences := sum(size for size, _ in scheme)) != batch:
        raise UsageError(f"the groups of the scheme have {sequences} sequences, and batch={batch}: make both equal.")
    return evaluate_scheme(costs, scheme)


def _check_group(costs: SliceCosts, size: int, tokens: Sequence[int]) -> None:
    """Check one group of a scheme."""
    problem = costs.problem
    if not is_index(size) or not 1 <= size <= costs.most_sequences:
        raise UsageError(f"a group of {shortened(size)} sequences: the cost is known for 1 to {costs.most_sequences}.")
    for length in tokens:
        if not is_index(length) or length < 1 or length % problem.granularity:
            raise UsageError(
                f"a token slice of {shortened(length)}: multiples of granularity={problem.granularity} are needed; "
                f"round it, or take a smaller granularity."
            )
    if sum(tokens) != problem.length:
        raise UsageError(
            f"the token slices {shortened(list(tokens))} sum to {sum(tokens)}, and length={problem.length}: "
            f"make a slice {abs(problem.length - sum(tokens))} tokens "
            f"{'longer' if sum(tokens) < problem.length else 'shorter'}."
        )
