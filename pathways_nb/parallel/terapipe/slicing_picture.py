"""What the token-slice explorer shows, as plain data: the slices of three slicings, uniform ones, and the cost surface.

Nothing here needs a notebook. Long sequences are planned in longer units, so that a change is drawn at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from pathways_nb.errors import UsageError, is_index
from pathways_nb.parallel.terapipe.problem import Problem
from pathways_nb.parallel.terapipe.slice_costs import SliceCosts
from pathways_nb.parallel.terapipe.slice_planner import plan
from pathways_nb.parallel.terapipe.slicing import Slicing, sum_and_max
from pathways_nb.trace.metrics import duration
from pathways_nb.util.words import counted

_MOST_WORK = 2**19
"""Units of a sequence, squared, times group sizes, that are planned within some 50 ms."""
_STEPS = 24
"""Steps of the cost surface in each direction, at most."""
_HIGHER = 3
"""Height of the cost surface, in lengths of the longest slice of the optimum and of the best uniform slicing."""
_MOST_BARS = 15
"""Numbers of uniform slices that are compared, at most: those next to the best one."""


class SliceRow(NamedTuple):
    """The token slices of one group of sequences, or of each sequence of a uniform slicing.

    Args:
        heading: what it is, with its times.
        tokens: of each slice.
        context: tokens before each slice.
        seconds: of each slice.
    """

    heading: str
    tokens: np.ndarray
    context: np.ndarray
    seconds: np.ndarray


class SlicingTerms(NamedTuple):
    """The two terms of a slicing's latency, in seconds.

    Args:
        slices: of a sequence, or of all groups of the optimum.
        sum: of all slices on one stage.
        waits: (K − 1) · max, the slowest slice on all other stages.
    """

    slices: int
    sum: float
    waits: float

    @classmethod
    def of(cls, slicing: Slicing) -> SlicingTerms:
        """Return the terms of a slicing of the whole batch."""
        return cls(slicing.slice_count, slicing.sum, slicing.latency - slicing.sum)

    @property
    def latency(self) -> float:
        """Seconds of the whole pipeline."""
        return self.sum + self.waits


class CostSurface(NamedTuple):
    """Seconds of slices by tokens and context, as columns (cells,); a cell of the picture for each.

    Args:
        tokens: of a slice, the largest of a cell.
        context: of a slice, the smallest of a cell.
        seconds: of that slice.
        token_step: height of a cell.
        context_step: width of a cell.
    """

    tokens: np.ndarray
    context: np.ndarray
    seconds: np.ndarray
    token_step: int
    context_step: int


@dataclass(frozen=True, eq=False)
class SlicingPicture:
    """The optimum and uniform slicings, or the reason why there is none.

    Attributes:
        planned: the optimum; None where there is ``error``.
        rows: the groups of the optimum, then the best uniform slicing and the one of the user's own count.
        uniform: uniform slicings by their number of slices, the user's own count among them.
        surface: the cost surface.
        best: number of slices of the best uniform slicing.
        own: the user's own number of slices.
        length: tokens of a sequence.
        note: what is not exact; empty if all is.
        error: why there is no picture; empty if there is one.
    """

    planned: Slicing | None = None
    rows: tuple[SliceRow, ...] = ()
    uniform: tuple[SlicingTerms, ...] = ()
    surface: CostSurface | None = None
    best: int = 0
    own: int = 0
    length: int = 1
    note: str = ""
    error: str = ""

    @property
    def optimum(self) -> SlicingTerms | None:
        """The terms of the optimum; None where there is ``error``."""
        return SlicingTerms.of(self.planned) if self.planned else None

    @property
    def best_uniform(self) -> SlicingTerms:
        """The terms of the best uniform slicing."""
        return next(one for one in self.uniform if one.slices == self.best)

    @property
    def lines(self) -> tuple[str, ...]:
        """The picture in words: headings and note, or the error."""
        return tuple(part for part in (*(row.heading for row in self.rows), self.note, self.error) if part)

    def __repr__(self) -> str:
        return "\n".join(self.lines)


def picture_of(cost: Any, *, length: int, stages: int, batch: int, granularity: int, uniform: int) -> SlicingPicture:
    """Return the picture of a cost and sizes.

    Args:
        cost: a function, as for ``plan``.
        length: L, tokens of a sequence.
        stages: K, stages of the pipeline.
        batch: B, sequences.
        granularity: tokens; each slice is a multiple of it.
        uniform: the user's own number of uniform slices.

    Raises:
        UsageError: sizes that do not fit each other, or a cost with holes.
    """
    asked = Problem(length, batch, stages, granularity)
    problem = replace(asked, granularity=_unit(asked, min(batch, getattr(cost, "most_sequences", batch))))
    tokens = nearly_equal(problem, uniform)
    planned = plan(cost, length=length, batch=batch, stages=stages, granularity=problem.granularity)
    costs, best = SliceCosts(cost, problem), min(planned.uniform, key=planned.uniform.__getitem__)
    # The user's own count need not divide the units: its slices then differ by one unit.
    even = {count: (length // count,) * count for count in planned.uniform}
    terms = {count: _terms(costs, each) for count, each in (even | {uniform: tokens}).items()}
    rows = (
        *_groups(costs, planned),
        _row(costs, _heading("best uniform", terms[best], problem), even[best]),
        _row(costs, _heading("yours, uniform", terms[uniform], problem), tokens),
    )
    # Not by the user's own slices: one of the whole sequence would leave no room for the others.
    highest = _HIGHER * max(int(row.tokens.max()) for row in rows[:-1])
    note = "" if problem == asked else (
        f"Planned in units of {problem.granularity} tokens, so that a change is shown at once; "
        f"pw.terapipe.plan takes granularity={granularity}."
    )  # fmt: skip
    bars = tuple(terms[count] for count in _near(sorted(terms), best, uniform))
    return SlicingPicture(planned, rows, bars, _surface(costs, highest), best, uniform, length, note)


def nearly_equal(problem: Problem, count: int) -> tuple[int, ...]:
    """Return the tokens of slices that differ by one unit at most, the longer ones first: they have less context.

    Args:
        problem: its length and granularity.
        count: number of slices.

    Raises:
        UsageError: no such number of slices.
    """
    if not is_index(count) or not 1 <= count <= problem.units:
        raise UsageError(
            f"uniform={count}: {problem.length} tokens in units of {problem.granularity} make 1 to {problem.units} "
            f"slices."
        )
    units, longer = divmod(problem.units, count)
    return tuple((units + (number < longer)) * problem.granularity for number in range(count))


def _unit(problem: Problem, groups: int) -> int:
    """Return the tokens of a unit with which a problem is planned at once.

    Args:
        problem: as asked for.
        groups: group sizes.

    Raises:
        UsageError: only far more units would do.
    """
    # The finest unit that is planned at once: the work grows with the square of the units.
    for factor in range(1, problem.units + 1):
        if problem.units % factor == 0 and (problem.units // factor) ** 2 * groups <= _MOST_WORK:
            coarser = factor * problem.granularity
            break
    if problem.units // factor >= min(problem.units, _STEPS):
        return coarser
    raise UsageError(
        f"length={problem.length} has {problem.units} units of granularity={problem.granularity}, too many to show for "
        f"groups of up to {counted(groups, 'sequence')}: take a larger granularity, or a smaller length or batch."
    )


def _terms(costs: SliceCosts, tokens: tuple[int, ...]) -> SlicingTerms:
    """Return the terms of a uniform slicing, each sequence alone."""
    total, largest = sum_and_max(costs, ((1, tokens),) * costs.problem.batch)
    return SlicingTerms(len(tokens), total, (costs.problem.stages - 1) * largest)


def _groups(costs: SliceCosts, planned: Slicing) -> list[SliceRow]:
    """Return a row for each group of the optimum that differs from the others."""
    rows: list[SliceRow] = []
    terms = SlicingTerms.of(planned)
    for size, tokens in dict.fromkeys(planned.scheme):
        alike = counted(planned.scheme.count((size, tokens)), "group")
        group = f"{alike} of {counted(size, 'sequence')} in {counted(len(tokens), 'slice')}"
        heading = _heading("optimum", terms, costs.problem) if not rows else ""
        parts = (heading, group if costs.problem.batch > 1 else "")
        rows.append(_row(costs, " · ".join(part for part in parts if part), tokens, size))
    return rows


def _heading(name: str, terms: SlicingTerms, problem: Problem) -> str:
    """Return what a slicing is, with both terms of its latency."""
    # With one stage there is no wait, and so no largest slice in it.
    waits = problem.stages - 1
    largest = duration(terms.waits / waits) if waits else "max"
    return (
        f"{name}, {counted(terms.slices, 'slice')}: {duration(terms.latency)} = "
        f"sum {duration(terms.sum)} + {waits} × max {largest}"
    )


def _row(costs: SliceCosts, heading: str, tokens: Sequence[int], sequences: int = 1) -> SliceRow:
    """Return the slices of a group of sequences."""
    lengths = np.array(tokens)
    context = np.cumsum(lengths) - lengths
    return SliceRow(heading, lengths, context, costs.at(sequences, lengths, context))


def _near(counts: Sequence[int], best: int, own: int) -> list[int]:
    """Return the numbers of slices to compare: those next to the best one, and the user's own."""
    # A window around the best one, moved inwards at both ends.
    first = max(0, min(counts.index(best) - _MOST_BARS // 2, len(counts) - _MOST_BARS))
    return sorted({*counts[first : first + _MOST_BARS], own})


def _surface(costs: SliceCosts, highest: int) -> CostSurface:
    """Return the cost surface of single sequences up to a length of slices."""
    unit, units = costs.problem.granularity, costs.problem.units
    rows = min(units, -(-highest // unit))
    token_step, context_step = -(-rows // _STEPS), -(-units // _STEPS)
    tokens, context = np.meshgrid(np.arange(token_step, rows + 1, token_step), np.arange(0, units, context_step))
    # Above that line a slice would end after the sequence.
    inside = tokens + context <= units
    tokens, context = unit * tokens[inside], unit * context[inside]
    return CostSurface(tokens, context, costs.at(1, tokens, context), unit * token_step, unit * context_step)
