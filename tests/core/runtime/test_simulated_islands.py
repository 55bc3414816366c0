"""Islands in virtual time, beside what the rules say when they are worked out by hand and by brute force."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathways_nb.controller.events_and_instructions import Launch
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.sim import simulated_islands
from pathways_nb.timing.event_queue import EventQueue
from tests.core.runtime.virtual_world import Played, World, plan_of, random_world, worked_out
from tests.support.examples import examples

WHOLE, LOW, HIGH, MIDDLE, LAST = 0, 1, 2, 3, 4
PLACES = {
    WHOLE: Placement(0, 0, 4),
    LOW: Placement(0, 0, 2),
    HIGH: Placement(0, 2, 2),
    MIDDLE: Placement(0, 1, 2),
    LAST: Placement(0, 3, 1),
}


def spans_of(steps, seconds, launch: float = 0.0, leaves: float = 0.0, late=None) -> dict[int, tuple[float, float]]:
    """Of one run on one island, all of which arrives at the beginning."""
    plan = plan_of(steps, PLACES)
    world = World([plan], [seconds], [(0.0, Launch(0, 0, 0, len(steps)))], launch, late or {}, leaves)
    return {at: span for (_, at), span in Played(world).play().spans.items()}


def test_of_equal_times_what_was_put_down_first_happens_first() -> None:
    agenda, said = EventQueue(), []
    for number, time in enumerate((2.0, 1.0, 1.0, 0.0)):
        agenda.at(time, said.append, number)
    assert agenda.next == 0.0
    while agenda.step():
        pass
    assert said == [3, 1, 2, 0]
    assert agenda.now == agenda.clock() == 2.0
    assert agenda.next is None


def test_time_never_goes_back() -> None:
    agenda = EventQueue()
    agenda.now = 5.0
    agenda.at(1.0, lambda: None)
    assert agenda.step()
    assert agenda.now == 5.0


def test_places_apart_run_side_by_side_and_places_that_overlap_one_after_another() -> None:
    steps = [
        ("launch", LOW, []),
        ("launch", HIGH, []),
        ("launch", MIDDLE, []),
        ("launch", LAST, []),
        ("launch", WHOLE, []),
    ]
    assert spans_of(steps, [1.0, 3.0, 1.0, 1.0, 1.0]) == {
        0: (0.0, 1.0), 1: (0.0, 3.0), 2: (3.0, 4.0), 3: (3.0, 4.0), 4: (4.0, 5.0)
    }  # fmt: skip


def test_what_is_behind_in_a_queue_waits_though_its_other_devices_are_free() -> None:
    """Devices run launches in the order of enqueues, or collectives of two gangs could wait for each other for ever."""
    steps = [("launch", LOW, []), ("launch", WHOLE, []), ("launch", HIGH, [])]
    assert spans_of(steps, [2.0, 1.0, 1.0])[2] == (3.0, 4.0)


def test_a_queue_is_cut_while_launches_are_in_it() -> None:
    steps = [
        ("launch", WHOLE, []),
        ("launch", WHOLE, []),
        ("launch", LOW, []),
        ("launch", LAST, []),
        ("launch", MIDDLE, []),
    ]
    assert spans_of(steps, [1.0, 1.0, 2.0, 1.0, 1.0]) == {
        0: (0.0, 1.0), 1: (1.0, 2.0), 2: (2.0, 4.0), 3: (2.0, 3.0), 4: (4.0, 5.0)
    }  # fmt: skip


def test_a_host_enqueues_launches_one_by_one_and_its_devices_need_not_wait_for_the_last() -> None:
    steps = [("launch", LOW, []), ("launch", HIGH, []), ("launch", LOW, [])]
    assert spans_of(steps, [0.25, 0.25, 0.25], launch=1.0) == {0: (1.0, 1.25), 1: (2.0, 2.25), 2: (3.0, 3.25)}


def test_transfers_take_turns_on_their_link_and_leave_it_before_they_arrive() -> None:
    steps = [("bring", LOW, []), ("bring", LOW, []), ("bring", HIGH, []), ("launch", LOW, [0, 1])]
    seconds = [1.0, 1.0, 1.0, 1.0]
    assert spans_of(steps, seconds) == {0: (0.0, 1.0), 1: (1.0, 2.0), 2: (0.0, 1.0), 3: (2.0, 3.0)}
    assert spans_of(steps, seconds, leaves=0.25)[1] == (0.75, 1.75)
    assert spans_of(steps, seconds, leaves=9.0)[1] == (0.0, 1.0)


def test_a_transfer_that_is_ready_first_takes_the_link_first() -> None:
    steps = [("bring", LOW, []), ("bring", LOW, [])]
    assert spans_of(steps, [1.0, 1.0], late={(0, 0): 0.5}) == {1: (0.0, 1.0), 0: (1.0, 2.0)}


def test_what_takes_no_time_waits_for_no_link() -> None:
    assert spans_of([("bring", LOW, []), ("bring", LOW, [])], [1.0, 0.0])[1] == (0.0, 0.0)


@examples(300)
@given(st.integers(0, 10**9))
def test_everything_starts_when_the_rules_say(seed: int) -> None:
    world = random_world(seed)
    played, expected = Played(world).play(), worked_out(world)
    assert played.spans.keys() == expected.keys()
    for key, span in expected.items():
        assert played.spans[key] == pytest.approx(span), (key, world)


@given(st.integers(0, 10**9))
def test_the_same_twice_is_the_same_to_the_last_bit_and_every_launch_ends_once(seed: int) -> None:
    world = random_world(seed)
    one, other = Played(world).play(), Played(world).play()
    assert list(one.spans.items()) == list(other.spans.items())
    assert one.ended == other.ended
    assert sorted(map(repr, one.ended)) == sorted(repr(launch) for _, launch in world.arrivals)


@given(st.integers(0, 10**9))
def test_a_step_costs_an_entry_of_the_agenda_and_one_if_it_waits_for_its_host(seed: int) -> None:
    world = random_world(seed)
    steps = [step for plan in world.plans for step in plan.steps]
    hosted = [step for step in steps if step.kind == "launch" and world.launch]
    entries = Played(world).play().entries
    assert entries <= len(steps) + len(hosted) + len(world.arrivals) + len(world.late)


@given(st.integers(0, 10**9))
def test_what_becomes_of_a_step_is_asked_when_it_begins_on_its_devices(seed: int) -> None:
    world = random_world(seed)
    played = Played(world).play()
    for (run, at), (start, _) in played.spans.items():
        if world.plans[run].steps[at].kind in ("launch", "host"):
            assert played.judged[run, at] == start


@examples(300)
@given(st.integers(0, 10**9))
def test_steps_that_pass_at_once_are_the_same_to_the_last_bit(seed: int) -> None:
    world = random_world(seed, many=12)
    one_by_one = Played(world).play()
    with mock.patch.object(simulated_islands, "_FEW", 1):
        together = Played(world, at_once=True).play()
    assert list(together.spans.items()) == list(one_by_one.spans.items())
    assert (together.ended, together.judged) == (one_by_one.ended, one_by_one.judged)


def test_a_long_stretch_passes_at_once_as_far_as_nothing_else_happens() -> None:
    """Twenty launches on the lower half, beside one on the upper half that ends in between."""
    steps = [("launch", HIGH, []), *(("launch", LOW, []) for _ in range(20))]
    seconds = [1.05, *(0.1 for _ in range(20))]
    world = World([plan_of(steps, PLACES)], [seconds], [(0.0, Launch(0, 0, 0, 21))], 0.0, {})
    played = Played(world, at_once=True).play()
    # All but the first, the last, and the one that is under way when the upper half is done.
    assert played.together == 17
    assert played.spans == Played(world).play().spans
    assert played.ended == [Launch(0, 0, 0, 21)]
