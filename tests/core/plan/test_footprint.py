"""What a program needs on each device, known from its plan."""

from __future__ import annotations

from dataclasses import replace

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


def test_each_peak_is_divided_by_category() -> None:
    sizes = [5, 3, 4]
    plan = chain(sizes, [0, 0, 0], (2,))
    (profile,) = footprint_of(plan, Sizes(tuple(sizes), {1: 10}, {})).profiles[0]
    assert profile.parts == (
        {"intermediates": 8, "temporaries": 10},
        {"intermediates": 8, "temporaries": 10},
        {"intermediates": 3, "results": 4},
        {"results": 4},
    )
    assert profile.parts[0] is profile.parts[1], "nothing changes"
    assert profile.peaks == tuple(sum(parts.values()) for parts in profile.parts)


def test_a_program_says_what_its_values_are_held_for() -> None:
    plan = chain([5, 3, 4], [0, 0, 0], (2,))
    plan = replace(plan, graph=replace(plan.graph, categories={0: "activations", 2: "gradients"}))
    footprint = footprint_of(plan, Sizes((5, 3, 4), {1: 10}, {}))
    assert footprint.profiles[0][0].parts[0] == {"activations": 5, "intermediates": 3, "temporaries": 10}
    assert [each.category for each in footprint.results] == ["gradients"]


def test_what_lies_in_memory_that_is_taken_over_is_not_counted_again() -> None:
    plan = chain([5, 3, 4], [0, 0, 0], (2,))
    (profile,) = footprint_of(plan, Sizes((5, 3, 4), {2: 2}, {2: (0, 3)})).profiles[0]
    assert profile.peaks == (8, 8, 6, 4)
    assert profile.parts[2] == {"intermediates": 3, "results": 1, "temporaries": 2}
    (profile,) = footprint_of(plan, Sizes((5, 3, 4), {2: 2}, {2: (0, 7)})).profiles[0]
    assert [sum(parts.values()) for parts in profile.parts] == list(profile.peaks), "more than it makes is taken over"


def test_what_another_island_reads_stays_until_a_later_step_depends_on_it() -> None:
    plan = chain([4, 1, 2], [0, 1, 0], (2,))
    footprint = footprint_of(plan, Sizes((4, 1, 2), {}, {}))
    assert footprint.profiles[0][0].peaks == (6, 6, 2)  # step 2 waits for step 1, which reads what step 0 made
    unread = footprint_of(chain([4, 1], [0, 1], (1,)), Sizes((4, 1), {}, {}))
    assert unread.profiles[0][0].peaks == (4, 4)  # nothing later on island 0 says that island 1 has read it
