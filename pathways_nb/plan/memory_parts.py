"""The memory of a plan's slots by category, and sums of bytes by category.

``footprint`` adds them up along the order of an island. Bytes by category are never changed in place: equal moments of
a run share one object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pathways_nb.plan.memory_categories import INTERMEDIATES, RESULTS, Parts
from pathways_nb.plan.plan import Plan


def purpose(plan: Plan, slot: int, otherwise: str) -> str:
    """Return the category that the program declares for a slot's value, else ``otherwise``."""
    return plan.graph.categories.get(plan.slots[slot].value, otherwise)


def by_category(
    plan: Plan, sized: Mapping[int, int], order: Sequence[int], ends: Mapping[int, int]
) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """Return the bytes that each step of an order adds, and those that are free after it.

    Args:
        plan: the lowered program.
        sized: the bytes that each slot adds.
        order: the steps of an island.
        ends: by slot, the position after which its memory is free.
    """
    made: list[dict[str, int]] = [{} for _ in order]
    expiring: list[dict[str, int]] = [{} for _ in range(len(order) + 1)]
    results = set(plan.results)
    for position, index in enumerate(order):
        for slot in plan.steps[index].outputs:
            if slot in sized:
                # Memory comes with the step and goes after its last reader, under the same category.
                category = purpose(plan, slot, RESULTS if slot in results else INTERMEDIATES)
                for there in (made[position], expiring[ends[slot]]):
                    there[category] = there.get(category, 0) + sized[slot]
    return made, expiring


def added(one: Parts, other: Parts, times: int = 1) -> Parts:
    """Return ``one + times * other``, without categories of 0 bytes; ``one`` itself if nothing changes."""
    if not any(other.values()):
        return one  # not a copy: a run of many equal moments keeps one object
    sums = {name: one.get(name, 0) + times * other.get(name, 0) for name in {**one, **other}}
    return {name: count for name, count in sums.items() if count}


def less(parts: Parts, names: Iterable[str], count: int) -> Parts:
    """Return ``parts`` with ``count`` bytes less, taken from the named categories in turn, then from any."""
    if not count:
        return parts
    found = dict(parts)
    # No category falls below 0: what one does not have is taken from the next.
    for name in (*names, *parts):
        taken = min(found.get(name, 0), count)
        found[name], count = found.get(name, 0) - taken, count - taken
    return {name: left for name, left in found.items() if left}
