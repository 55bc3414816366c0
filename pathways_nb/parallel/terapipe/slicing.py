"""A slicing of a batch: its slices, what they cost, and the uniform slicings to compare it with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from pathways_nb.errors import UsageError
from pathways_nb.parallel.terapipe.slice_costs import SliceCosts
from pathways_nb.util.text_table import Printed, Table
from pathways_nb.util.words import counted

Scheme = tuple[tuple[int, tuple[int, ...]], ...]
"""For each group the number of its sequences, and the tokens of its slices from first to last."""


@dataclass(frozen=True, repr=False)
class Slicing(Printed):
    """A joint slicing of batch and tokens with its predicted times, all in seconds.

    Attributes:
        scheme: for each group of sequences ``(sequences, token slice lengths)``.
        latency: of the whole pipeline, ``sum + (stages - 1) · max`` (TeraPipe, equation 5).
        sum: of all slices on one stage.
        max: of the slice that takes longest.
        stages: K.
        uniform: latency of each sequence alone in equal slices, by the number of slices.
    """

    scheme: Scheme
    latency: float
    sum: float
    max: float
    stages: int
    uniform: Mapping[int, float] = field(compare=False)

    @property
    def token_slices(self) -> tuple[int, ...]:
        """Tokens of the slices of one sequence, as ``pw.pipeline(…, token_slices=…)`` takes them.

        Raises:
            UsageError: groups of sequences are sliced in different ways.
        """
        ways = {tokens for _, tokens in self.scheme}
        if len(ways) > 1:
            raise UsageError(
                f"the groups of this slicing are sliced in {len(ways)} ways, {short_scheme(self.scheme)}, and a "
                f"pipeline slices all sequences alike: plan with batch=1, or with a cost of single sequences."
            )
        return next(iter(ways))

    @property
    def slice_count(self) -> int:
        """Number of slices of all groups."""
        return sum(len(tokens) for _, tokens in self.scheme)

    def _table(self) -> Table:
        batch, length = sum(size for size, _ in self.scheme), sum(self.scheme[0][1])
        title = (
            f"Slicing of {counted(batch, 'sequence')} of {length} tokens on {counted(self.stages, 'stage')}: "
            f"{self.latency:.4g} s = sum {self.sum:.4g} + {self.stages - 1} × max {self.max:.4g}"
        )
        rows = [(short_scheme(self.scheme), f"{self.latency:.4g}", "1.00")]
        for count, latency in self.uniform.items():
            over = f"{latency / self.latency:.2f}" if self.latency else "–"
            rows.append((f"uniform, {counted(count, 'slice')} of {length // count}", f"{latency:.4g}", over))
        return Table(title, ("slices", "seconds", "over this"), rows)


def short_scheme(scheme: Scheme) -> str:
    """Return a scheme in the paper's notation, with repeats counted: ``"[(1, [88×16, 80×8])] × 2"``."""
    parts = []
    for (size, tokens), alike in groupby(scheme):
        lengths = ((length, len(list(same))) for length, same in groupby(tokens))
        written = ", ".join(f"{length}×{count}" if count > 1 else str(length) for length, count in lengths)
        count = len(list(alike))
        parts.append(f"[({size}, [{written}])]" + (f" × {count}" if count > 1 else ""))
    return " + ".join(parts)


def evaluate_scheme(costs: SliceCosts, scheme: Iterable[tuple[int, Sequence[int]]]) -> Slicing:
    """Return a scheme with its times.

    Args:
        costs: seconds of slices.
        scheme: of the whole batch.
    """
    fixed = tuple((int(size), tuple(map(int, tokens))) for size, tokens in scheme)
    total, largest = sum_and_max(costs, fixed)
    latency = total + (costs.problem.stages - 1) * largest
    return Slicing(fixed, latency, total, largest, costs.problem.stages, _uniform(costs))


def sum_and_max(costs: SliceCosts, scheme: Scheme) -> tuple[float, float]:
    """Return the seconds of all slices and those of the largest; equal groups are looked up once."""
    total, largest = 0.0, 0.0
    # A batch may have thousands of equal groups.
    for size, tokens in dict.fromkeys(scheme):
        lengths = np.array(tokens)
        # (slices,) the tokens before a slice are its context.
        seconds = costs.at(size, lengths, np.cumsum(lengths) - lengths)
        total += float(seconds.sum()) * scheme.count((size, tokens))
        largest = max(largest, float(seconds.max()))
    return total, largest


def _uniform(costs: SliceCosts) -> dict[int, float]:
    """Return the latency of each number of equal slices, each sequence alone."""
    problem, found = costs.problem, {}
    for count in range(1, problem.units + 1):
        # Other counts have no equal slices of whole units.
        if problem.units % count == 0:
            tokens = (problem.length // count,) * count
            total, largest = sum_and_max(costs, ((1, tokens),))
            found[count] = problem.batch * total + (problem.stages - 1) * largest
    return found
