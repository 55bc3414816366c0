"""A lower bound on exposed communication that no order and no buckets can beat under the same costs.

Three facts cannot be avoided. A parameter is used only after everything that is used before it and it itself have been
gathered, through one stream. Everything whose gradient is made after a moment is reduced after it, through one stream.
And where gathers and reductions share a stream, the step takes at least as long as both. A bucket of any size pays the
latency once, so each of them pays it at least once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from operator import itemgetter
from typing import Literal

from pathways_nb.parallel.fsdp.costs import TICK
from pathways_nb.parallel.fsdp.outline import Outline


def exposed_bound(outline: Outline, kept: frozenset[int] = frozenset(), streams: Literal[2, 3] = 2) -> float:
    """Return the seconds that the device must wait for exchanges, whatever the plan.

    Args:
        outline: of the step.
        kept: parameters that stay gathered for the backward pass.
        streams: 3 for gathers and reductions on streams of their own, 2 for both on one.
    """
    late = gathered = converted = done = 0
    gathers = [*outline.forward, *(use for use in outline.again if use.param not in kept)]
    delays = list[tuple[int, int]]()
    for use in sorted(gathers, key=lambda use: use.read):
        gathered += use.made
        done = outline.costs.exchange("all_gather", gathered, outline.axis)
        converted += use.costs.before  # a parameter is converted before it is gathered, beside other exchanges at best
        late = max(late, converted, done - outline.passed[use.read])
        delays.append((use.read, late))
    apart = outline.compute - outline.passed[-1]  # conversions are part of ``compute``, not of ``passed``
    together = done + _reduced(outline) - outline.passed[-1] if streams == 2 else 0
    return max(0, max([late, together, *_after(outline, delays)]) - apart) * TICK


def _reduced(outline: Outline) -> int:
    """Return the ticks of all reductions, in one bucket for each kind."""
    sizes = Counter[tuple[str, str]]()
    for one in outline.reductions:
        sizes[one.kinds[0]] += one.costs.padded
    return outline.together(sizes)


def _after(outline: Outline, delays: list[tuple[int, int]]) -> list[int]:
    """Return, for the moment at which each gradient is made, how late the step must end."""
    total, found, left = outline.passed[-1], list[int](), Counter[tuple[str, str]]()
    for one in reversed(outline.reductions):
        left[one.kinds[0]] += one.costs.padded
        ticks = outline.together(left)
        before = bisect_right(delays, one.at, key=itemgetter(0))  # both of a pair rise
        late = delays[before - 1][1] if before else 0
        found.append(late + ticks - (total - outline.passed[one.at]))
    return found
