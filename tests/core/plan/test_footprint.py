"""What a program needs on each device, known from its plan."""

from __future__ import annotations

from pathways_nb.plan.footprint import MemoryProfile, Sizes, footprint_of
from pathways_nb.plan.graph import Graph
from pathways_nb.plan.plan import Placement, Plan, Slot, Step

# ---- peaks


def chain(sizes: list[int], islands: list[int], results: tuple[int, ...] = ()) -> Plan:
    steps = tuple(
        Step("launch", i, k, k, (i - 1,) if i else (), (i,), producers=(i - 1,) if i else ())
        for i, k in enumerate(islands)
    )
    orders = {k: tuple(i for i, island in enumerate(islands) if island == k) for k in sorted(set(islands))}
    slots = tuple(Slot(i, k) for i, k in enumerate(islands))
    return Plan(Graph("chain", (), ()), {k: Placement(k, 0, 2) for k in orders}, slots, steps, orders, results, {})


def test_a_chain_holds_two_values_at_a_time_and_its_result_to_the_end() -> None:
    sizes = [5, 3, 4]
    footprint = footprint_of(chain(sizes, [0, 0, 0], (2,)), Sizes(tuple(sizes), {1: 10}, {}))
    assert footprint.profiles == {0: (MemoryProfile(0, 2, (18, 18, 7, 4), 1, 10),)}


def test_what_another_island_reads_stays_until_a_later_step_depends_on_it() -> None:
    plan = chain([4, 1, 2], [0, 1, 0], (2,))
    footprint = footprint_of(plan, Sizes((4, 1, 2), {}, {}))
    assert footprint.profiles[0][0].peaks == (6, 6, 2)  # step 2 waits for step 1, which reads what step 0 made
    unread = footprint_of(chain([4, 1], [0, 1], (1,)), Sizes((4, 1), {}, {}))
    assert unread.profiles[0][0].peaks == (4, 4)  # nothing later on island 0 says that island 1 has read it
