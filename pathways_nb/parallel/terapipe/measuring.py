"""``pw.terapipe.measure`` and ``fit_timed``: time slices of several lengths and contexts, and fit their cost.

``fit_timed`` times any function and needs no devices; ``measure`` gives it a stage on devices. Slices take turns, round
after round, so that other load on the machine is spread over all of them; each is timed once more before, because its
first run compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from pathways_nb.cost.calibration.fitting import noise
from pathways_nb.errors import UsageError
from pathways_nb.parallel.pipelines.slice_timing import SliceTimer
from pathways_nb.parallel.terapipe.fitted_cost import FittedCost, fit
from pathways_nb.parallel.terapipe.problem import Problem
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.util.progress import Progress, show_progress

Sizes = tuple[int, int, int]
"""Sequences, tokens and context of a slice."""


def fit_timed(
    seconds: Callable[[int, int, int], float],
    *,
    length: int,
    lengths: Sequence[int] | None = None,
    batches: Sequence[int] = (1,),
    contexts: int = 4,
    granularity: int = 8,
    rounds: int = 3,
    say: Callable[[str], object] = show_progress,
) -> FittedCost:
    """Return the cost of slices, timed and fitted; its table states the error of the fit and the noise.

    Args:
        seconds: times one slice: a function of (sequences, tokens, context).
        length: L, tokens of a sequence.
        lengths: tokens of the slices to time, with ``length`` as the last; by default the granularity and its doubles
            up to ``length``.
        batches: numbers of sequences to time together.
        contexts: number of contexts to time for each length, in addition to none.
        granularity: tokens; each length and context is a multiple of it.
        rounds: repetitions whose median counts.
        say: called with lines of progress, after two seconds.

    Raises:
        UsageError: lengths that are no multiples of the granularity or do not end with ``length``.
    """
    # For its checks and its units; how many stages there are does not matter for a slice.
    problem = Problem(length, max(batches), 1, granularity)
    chosen = _doubles(problem) if lengths is None else sorted(set(lengths))
    wrong = [one for one in chosen if one < 1 or one % granularity]
    if wrong or not chosen or chosen[-1] != length:
        raise UsageError(
            f"terapipe.measure: lengths={chosen}: multiples of granularity={granularity} up to length={length}, which "
            f"is the last one, are needed."
        )
    sizes = [
        (count, tokens, context)
        for count in sorted(set(batches))
        for tokens in chosen
        for context in _contexts(tokens, contexts, problem)
    ]
    with Progress(say) as progress:
        timed = _timed(seconds, sizes, max(1, rounds), progress)
    cost = fit([(*size, median(found)) for size, found in timed.items()])
    return replace(cost, noise=median(map(noise, timed.values())) if rounds > 1 else None)


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
    say: Callable[[str], object] = show_progress,
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
        contexts: number of contexts to time for each length, in addition to none.
        granularity: tokens; each length and context is a multiple of it.
        rounds: repetitions whose median counts.
        say: called with lines of progress, after two seconds.

    Returns:
        The fitted cost, for ``pw.terapipe.plan``; its table states the error of the fit and the noise.

    Raises:
        UsageError: lengths that are no multiples of the granularity or do not end with L, or slices larger than ``x``.
    """
    # What times is a function of three sizes, as a user's own may be.
    timer = SliceTimer(stage, params, x, on)
    return fit_timed(
        timer, length=timer.length, lengths=lengths, batches=batches, contexts=contexts,
        granularity=granularity, rounds=rounds, say=say,
    )  # fmt: skip


def _doubles(problem: Problem) -> list[int]:
    """Return the granularity and its doubles below the length, and the length."""
    found = [problem.granularity]
    while 2 * found[-1] < problem.length:
        found.append(2 * found[-1])
    return sorted({*found, problem.length})


def _contexts(tokens: int, count: int, problem: Problem) -> list[int]:
    """Return no context, and up to ``count`` contexts spread over what the sequence has left."""
    left = (problem.length - tokens) // problem.granularity
    # A set, because a long slice leaves room for fewer contexts than asked for.
    return sorted({problem.granularity * (left * step // count) for step in range(count + 1)})


def _timed(
    seconds: Callable[[int, int, int], float], sizes: Sequence[Sizes], rounds: int, progress: Progress
) -> dict[Sizes, list[float]]:
    """Return the seconds of each slice in each round."""
    found: dict[Sizes, list[float]] = {size: [] for size in sizes}
    for turn in range(rounds + 1):
        for number, size in enumerate(sizes, 1):
            taken = float(seconds(*size))
            # Round 0 compiles each slice and is not counted.
            if turn:
                found[size].append(taken)
            name = f"round {turn} of {rounds}" if turn else "compiling"
            progress.tell(f"terapipe.measure: {name}, slice {number} of {len(sizes)}")
    return found
