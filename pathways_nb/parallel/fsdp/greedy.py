"""The paper's greedy rule for buckets (SimpleFSDP, section 4.2): the baseline that a search is compared with.

A parameter joins the bucket that is being filled if the time of the bucket's gather, in the backward pass together with
the last bucket's reduction, stays below the computation of the bucket before it, which is to hide it, and if both
buckets fit the memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from pathways_nb.parallel.fsdp.outline import Made, Outline, Use
from pathways_nb.parallel.fsdp.passes.sketch import Gathered


def greedy_buckets(outline: Outline, room: float = math.inf) -> tuple[list[list[int]], list[list[int]]]:
    """Return the buckets of the forward and of the backward pass.

    Args:
        outline: of the step.
        room: bytes that a device has for gathered parameters.
    """
    forward = _filled(outline, outline.forward, room, lambda bucket: 0)
    reductions = {one.param: one for one in outline.reductions}
    again = _filled(
        outline, outline.again or _backward_uses(outline), room, lambda bucket: _reduce(outline, bucket, reductions)
    )
    left = [one.param for one in outline.reductions if not any(one.param in bucket for bucket in again)]
    missing = [use.param for use in outline.forward if not any(use.param in bucket for bucket in again)]
    return forward, [*again, *([param] for param in dict.fromkeys([*left, *missing]))]


def _filled(outline: Outline, uses: Sequence[Use], room: float, beside: Callable[[list[Use]], int]) -> list[list[int]]:
    """Return buckets of gathers in order; ``beside`` returns what a closed bucket exchanges beside the next."""
    found, bucket = list[list[Use]](), list[Use]()
    hides = others = held = 0
    for use in uses:
        size = sum(one.made for one in (*bucket, use))
        exchange = outline.costs.exchange("all_gather", size, outline.axis)
        if bucket and (exchange + others > hides or held + 2 * size > room):  # in the bucket, and unpacked
            hides, others = _compute(outline, bucket, use), beside(bucket)
            held = sum(one.made for one in bucket)
            found.append(bucket)
            bucket = []
        bucket.append(use)
    return [[use.param for use in one] for one in (*found, bucket) if one]


def _compute(outline: Outline, bucket: list[Use], after: Use) -> int:
    """Return the ticks of computation from the first use of a bucket to the first use of the next."""
    return outline.passed[after.at] - outline.passed[bucket[0].at]


def _reduce(outline: Outline, bucket: list[Use], of: dict[int, Made]) -> int:
    """Return the ticks of the reductions of a bucket."""
    sizes = Counter[tuple[str, str]]()
    for use in bucket:
        if use.param in of:
            sizes[of[use.param].kinds[0]] += of[use.param].costs.padded
    return outline.together(sizes)


def _backward_uses(outline: Outline) -> list[Use]:
    """Return the reductions as if they were gathers that cost nothing, where none are repeated."""
    return [Use(one.param, one.at, one.at, one.dtype, Gathered(0, 0, 0)) for one in outline.reductions]
