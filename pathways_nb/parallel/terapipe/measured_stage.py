"""``pw.terapipe.measure``: the cost of token slices of a stage, timed on the attached devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pathways_nb.parallel.pipelines.slice_timing import SliceTimer
from pathways_nb.parallel.terapipe.fitted_cost import FittedCost
from pathways_nb.parallel.terapipe.measuring import fit_timed
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.util.progress import to_standard_error


def measure(
    stage: Callable[..., Any],
    params: Any,
    x: Any,
    *,
    on: VirtualSlice,
    lengths: Sequence[int] | None = None,
    batches: Sequence[int] = (1,),
    contexts: int = 2,
    granularity: int = 8,
    rounds: int = 3,
    say: Callable[[str], object] = to_standard_error,
) -> FittedCost:
    """Return the cost of token slices of a stage, timed forward and backward and fitted (TeraPipe, equation 9).

    Each pair of a length and a context is compiled once, which takes most of the time.

    Args:
        stage: a function ``(params, x, context) -> y``, as in ``pw.pipeline``.
        params: its parameters.
        x: its input for whole sequences, (B, L, …).
        on: the place to run on.
        lengths: tokens of the slices to time, with L as the last; by default the granularity and its doubles up to L.
        batches: numbers of sequences to time together, at most B.
        contexts: number of contexts to time for each length, beside none.
        granularity: tokens; each length and context is a multiple of it.
        rounds: repetitions whose median counts.
        say: called with lines of progress, after two seconds.

    Returns:
        The fitted cost, for ``pw.terapipe.plan``; its table states the error of the fit and the noise.

    Raises:
        UsageError: lengths that are no multiples of the granularity or do not end with L, or slices larger than ``x``.
    """
    timer = SliceTimer(stage, params, x, on)
    return fit_timed(
        timer, length=timer.length, lengths=lengths, batches=batches, contexts=contexts,
        granularity=granularity, rounds=rounds, say=say,
    )  # fmt: skip
