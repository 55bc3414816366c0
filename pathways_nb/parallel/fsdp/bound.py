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

from pathways_nb.parallel.fsdp.operation_costs import TICK
from pathways_nb.parallel.fsdp.outline import Outline


def exposed_bound(outline: Outline, kept: frozenset[int] = frozenset(), streams: Literal[2, 3] = 2) -> float:
    """Return the seconds that the device must wait for exchanges, whatever the plan.

    Args:
        outline: of the step.
        kept: parameters that stay gathered for the backward pass.
        streams: 3 for gathers and reductions on streams of their own, 2 for both on one.
    """
    late = size = converted = gathered_at = 0
    gathers = [*outline.forward, *(one for one in outline.regathers if one.param not in kept)]
    delays = list[tuple[int, int]]()  # (gathers,) position of a use, ticks by which it is late at least
    for one in sorted(gathers, key=lambda one: one.read):
        # All bytes up to this use in one bucket: the least latency, and full bandwidth.
        size += one.costs.whole_bytes
        gathered_at = outline.costs.exchange("all_gather", size, outline.axis)
        # A parameter is converted before it is gathered; other exchanges can run meanwhile, so the two do not add up.
        converted += one.costs.convert_ticks
        late = max(late, converted, gathered_at - outline.passed[one.read])
        delays.append((one.read, late))
    total = outline.passed[-1]
    sizes = Counter[tuple[str, str]]()
    after = list[int]()  # (reductions,) how late the step must end, from the moment at which a gradient is made
    for reduction in reversed(outline.reductions):
        sizes[reduction.kinds[0]] += reduction.costs.padded_bytes
        before = bisect_right(delays, reduction.at, key=itemgetter(0))  # positions and delays both rise
        delay = delays[before - 1][1] if before else 0
        after.append(delay + outline.together(sizes) - (total - outline.passed[reduction.at]))
    # ``sizes`` has all reductions now.
    together = gathered_at + outline.together(sizes) - total if streams == 2 else 0
    apart = outline.compute - total  # conversions are part of ``compute``, not of ``passed``
    return max(0, max([late, together, *after]) - apart) * TICK
