"""Policies and shares of clients, decided by the state machine alone."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.controller.events_and_instructions import Cancelled, Completed, Fail, Launch, Opened, Submitted, Waited
from pathways_nb.controller.invariants import check_invariants
from pathways_nb.controller.policies import POLICIES
from pathways_nb.controller.scheduler import SOON
from pathways_nb.controller.state_machine import StateMachine
from tests.core.controller.imagined_devices import plan_of
from tests.support.examples import examples


def test_what_was_cancelled_is_not_held_against_its_client() -> None:
    machine, plan = StateMachine(devices=(1,)), plan_of([0])
    order: list[str] = []

    def launched(out: list[Any]) -> list[Launch]:
        return [each for each in out if isinstance(each, Launch)]

    def call(client: str, runs: range) -> list[Launch]:
        return [
            launch
            for run in runs
            for launch in launched(machine.handle(Submitted(run, client, plan, (), (run,), (8,))))
        ]

    def done(queue: list[Launch]) -> None:
        while queue:
            launch = queue.pop(0)
            order.append("" if launch.run in given_up else "ann" if launch.run >= 100 else "bob")
            seconds = 0.0 if launch.run in given_up else 1.0
            queue += launched(machine.handle(Completed(launch.run, 0, launch.start, launch.stop, seconds)))

    given_up = range(100, 140)
    done(call("ann", range(200, 201)) + call("bob", range(1)))
    queue = call("bob", range(10, 50)) + call("ann", given_up)
    queue += launched(machine.handle(Cancelled(tuple(given_up))))
    skipped = [launch for launch in queue if launch.run in given_up]
    queue = [launch for launch in queue if launch.run not in given_up]
    done(skipped)
    assert machine.clients["ann"].seconds == pytest.approx(1.0)
    order.clear()
    done(queue + call("ann", range(300, 340)))
    assert {order[:20].count("ann"), order[:20].count("bob")} <= set(range(7, 14)), order


def test_who_stands_still_while_others_go_on_is_said_to_wait_and_nobody_else() -> None:
    """A client with work under way does not wait; one that had to stand still does, though the others have ended."""

    def bob_first(ready: Any, state: Any) -> Any:
        return next((gang for gang in ready if gang.client == "bob"), ready[0])

    machine, long = StateMachine(devices=(1,), policy=bob_first), plan_of([0])
    queue: list[Launch] = []
    waited: dict[str, list[tuple[float, float]]] = {"ann": [], "bob": []}
    now = 0.0

    def take(event: Any) -> None:
        for each in machine.handle(event, now):
            if isinstance(each, Launch):
                queue.append(each)
            if isinstance(each, Waited):
                assert each.reason == "waits its turn"
                waited[machine.calls[each.run].submitted.client].append((each.since, now))

    def run_all() -> str:
        nonlocal now
        order = ""
        while queue:
            launch, now = queue.pop(0), now + 1.0
            order += machine.calls[launch.run].submitted.client[0]
            take(Completed(launch.run, 0, launch.start, launch.stop, 1.0))
        return order

    take(Submitted(0, "ann", long, (), (0,), (8,)))
    assert run_all() == "a"  # it is known how long one takes
    for run, client in enumerate(["ann"] * 4 + ["bob"] * 3, 1):
        take(Submitted(run, client, long, (), (run,), (8,)))
    assert run_all() == "aabbbaa"
    assert waited == {"ann": [(3.0, 5.0)], "bob": [(1.0, 2.0)]}


def test_a_first_run_that_failed_says_nothing_about_the_next() -> None:
    machine, plan = StateMachine(devices=(1,)), plan_of([0])
    for run, seconds in enumerate([0.0, 1.0, 1.0]):
        machine.handle(Submitted(run, "ann", plan, (), (run,), (8,)))
        machine.handle(Completed(run, 0, 0, 1, seconds))
    assert machine._estimates[plan].seconds == {0: [pytest.approx(1.0)]}


class Backlogged:
    """Clients that always have programs waiting, on one island whose gangs last as long as their client's say."""

    def __init__(self, shares: dict[str, float], seconds: dict[str, float], policy: Any = POLICIES["stride"]):
        self.machine = StateMachine(policy=policy, devices=(1,))
        self.seconds, self.serials, self.order = seconds, itertools.count(), deque[Launch]()
        self.owner: dict[int, str] = {}
        self.served: list[tuple[str, float]] = []
        self.plans = {client: plan_of([0]) for client in shares}
        for client, share in shares.items():
            self.obey(self.machine.handle(Opened(client, share, 0.0)))
        for client in shares:
            for _ in range(64):
                self.submit(client)

    def submit(self, client: str) -> None:
        serial = next(self.serials)
        self.owner[serial] = client
        event = Submitted(serial, client, self.plans[client], (), (serial,), (8,))
        self.obey(self.machine.handle(event, float(serial)))

    def obey(self, instructions: list[Any]) -> None:
        self.order += [i for i in instructions if isinstance(i, Launch)]

    def serve(self) -> None:
        launch = self.order.popleft()
        client = self.owner[launch.run]
        self.served.append((client, self.seconds[client]))
        done = Completed(launch.run, 0, launch.start, launch.stop, self.seconds[client])
        self.obey(self.machine.handle(done))
        self.submit(client)

    def got(self, window: int) -> dict[str, float]:
        """Seconds of each client among the last gangs."""
        return {client: sum(s for c, s in self.served[-window:] if c == client) for client in self.seconds}


@given(st.lists(st.tuples(st.sampled_from([1.0, 2.0, 4.0, 8.0]), st.floats(2e-4, 5e-3)), min_size=2, max_size=4))
@examples(10)
def test_backlogged_clients_get_their_shares_of_device_time_whatever_their_gangs_last(clients) -> None:
    shares = {f"c{i}": share for i, (share, _) in enumerate(clients)}
    world = Backlogged(shares, {f"c{i}": seconds for i, (_, seconds) in enumerate(clients)})
    for _ in range(5000):  # the first programs went out before anybody competed, or knew how long they take
        world.serve()
    check_invariants(world.machine)
    got = world.got(1000)
    for client, seconds in got.items():
        promised = sum(got.values()) * shares[client] / sum(shares.values())
        assert abs(seconds - promised) <= 0.05 * promised + 2 * max(world.seconds.values()), "a gang more or less"


@pytest.mark.parametrize("shares", [(1, 1, 1, 1), (1, 2, 4, 8)])
@pytest.mark.parametrize("seconds", [2e-4, 3e-3])
def test_shares_hold_in_every_window_of_400_gangs_however_short(shares: tuple[int, ...], seconds: float) -> None:
    names = [f"c{i}" for i in range(len(shares))]
    world = Backlogged(dict(zip(names, shares, strict=True)), dict.fromkeys(names, seconds))
    for _ in range(4000):
        world.serve()
    order = [client for client, _ in world.served[2000:]]
    so_far = np.cumsum([[name == client for name in names] for client in order], axis=0)
    got = (so_far[400:] - so_far[:-400]) / 400
    assert np.abs(got / (np.array(shares) / sum(shares)) - 1).max() <= 0.055


def test_who_comes_again_soon_finds_little_of_a_rivals_work_before_its_own() -> None:
    """Each program takes its host 4 ms, and the device nothing: what is enqueued follows from the ends of late."""
    machine, plan, now = StateMachine(devices=(1,)), plan_of([0]), 0.0
    queue = deque[Launch]()

    def take(event: Any) -> None:
        queue.extend(each for each in machine.handle(event, now) if isinstance(each, Launch))

    def end() -> None:
        launch = queue.popleft()
        take(Completed(launch.run, 0, launch.start, launch.stop, 1e-6))

    for run in range(80):
        take(Submitted(run, "ann" if run < 20 else "bob", plan, (), (run,), (8,)))
    while machine.active == 2:
        now += 4e-3
        end()
    assert len(queue) == 2
    now += 1e-3
    end()
    assert (len(queue), len(machine.calls)) == (2, 59)
    for _ in range(6):  # nobody comes, and what is left goes out whole
        now += 4e-3
        end()
    assert len(queue) > 2


def test_who_was_away_cannot_save_up() -> None:
    machine = StateMachine(devices=(1,))
    for run in range(3):
        machine.handle(Submitted(run, "early", plan_of([0]), (), (run,), (8,)))
    machine.clients["early"].charge(100.0, contended=True)
    machine.handle(Submitted(9, "late", plan_of([0]), (), (9,), (8,)))
    assert machine.clients["late"].passed == pytest.approx(machine.clients["early"].passed, abs=0.01)


@pytest.mark.parametrize(("away", "least"), [(2e-3, 2.0), (30e-3, 0.0)])
def test_a_share_holds_for_who_hears_late_of_its_ends_but_not_for_who_is_away_for_long(
    away: float, least: float
) -> None:
    """Each program takes half a millisecond; ``three`` makes its next 32 a while after it has heard of 32 ends.

    ``one`` always has programs queued. While the other is away, its programs run, and are charged.
    """
    machine, plan, now, runs = StateMachine(devices=(1,)), plan_of([0]), 0.0, itertools.count()
    queue, served = deque[Launch](), list[str]()

    def take(event: Any) -> None:
        queue.extend(each for each in machine.handle(event, now) if isinstance(each, Launch))

    def call(client: str, count: int) -> None:
        for run in itertools.islice(runs, count):
            take(Submitted(run, client, plan, (), (run,), (8,)))

    take(Opened("one", 1.0, 0.0))
    take(Opened("three", 3.0, 0.0))
    call("one", 16)
    call("three", 32)
    heard, back = 0, float("inf")
    while len(served) < 2400:
        now += 5e-4
        launch = queue.popleft()
        client = machine.calls[launch.run].client
        served.append(client)
        take(Completed(launch.run, 0, launch.start, launch.stop, 5e-4))
        if client == "one":
            call("one", 1)
        else:
            heard += 1
            back = now + away if heard % 32 == 0 else back
        if now >= back:
            call("three", 32)
            back = float("inf")
    ratio = served.count("three") / served.count("one")
    alone = 32 / (away / 5e-4)  # what it could have at most: it runs as soon as it comes
    assert least <= ratio <= min(alone, 3.0) + 0.1


def test_what_who_was_away_shortly_may_have_left_unused_is_bounded() -> None:
    machine, plan = StateMachine(devices=(1,)), plan_of([0])
    machine.handle(Opened("late", 2.0, 0.0))
    machine.handle(Submitted(0, "late", plan, (), (0,), (8,)))
    machine.handle(Completed(0, 0, 0, 1, 1e-3), 1.0)
    machine.handle(Submitted(1, "early", plan, (), (1,), (8,)), 1.0)
    machine.clients["early"].charge(100.0, contended=True)
    machine.handle(Submitted(2, "late", plan, (), (2,), (8,)), 1.0 + SOON / 2)
    assert machine.clients["late"].passed == pytest.approx(100.0 - SOON / 2, abs=0.002)


def waiting_three(policy: Any) -> tuple[StateMachine, list[Any]]:
    """A machine with two gangs in flight and three programs waiting: of ann, bob (more urgent) and eve."""
    machine = StateMachine(policy=policy, devices=(1,))
    for client, priority in (("ann", 0.0), ("bob", 5.0), ("eve", 0.0)):
        machine.handle(Opened(client, 1.0, priority))
    plan = plan_of([0])
    machine.handle(Submitted(0, "ann", plan, (), (), ()))
    machine.handle(Submitted(1, "eve", plan, (), (), ()))
    for lane in machine.queues.values():
        lane.work = 1.0  # busy for long
    for run, client in ((2, "ann"), (3, "bob"), (4, "eve")):
        assert machine.handle(Submitted(run, client, plan, (), (), ())) == []
    return machine, machine.handle(Completed(0, 0, 0, 1, 1e-3))


def test_priority_takes_the_most_urgent_client() -> None:
    _, out = waiting_three(POLICIES["priority"])
    assert next(i.run for i in out if isinstance(i, Launch)) == 3


def test_fifo_takes_the_oldest_program() -> None:
    _, out = waiting_three(POLICIES["fifo"])
    assert next(i.run for i in out if isinstance(i, Launch)) == 2


def test_shortest_takes_what_never_ran_and_then_the_quickest() -> None:
    state: Any = None
    gangs = [pw_gang(serial, seconds) for serial, seconds in ((1, 2.0), (2, 1.0), (3, None))]
    assert POLICIES["shortest"](gangs, state).serial == 3
    assert POLICIES["shortest"](gangs[:2], state).serial == 2


def pw_gang(serial: int, seconds: float | None) -> Any:
    from pathways_nb.controller.policies import ReadyGang

    return ReadyGang("ann", "p", "n", 1, seconds, 0.0, serial)


def test_a_policy_sees_who_waits_since_when_and_what_each_has_had() -> None:
    seen: list[Any] = []

    def watching(ready: Any, state: Any) -> Any:
        seen.append((ready, state))
        return min(ready, key=lambda gang: (state.device_seconds[gang.client], gang.serial))

    machine, _ = waiting_three(watching)
    ready, state = seen[-1]
    assert {gang.client for gang in ready} <= {"ann", "bob", "eve"}
    assert set(state.shares) == set(state.priorities) == set(state.device_seconds) == {"ann", "bob", "eve"}
    check_invariants(machine)


@pytest.mark.parametrize("wrong", [lambda ready, state: ready[99], lambda ready, state: None])
def test_a_policy_that_fails_fails_those_it_was_to_choose_from(wrong) -> None:
    machine, out = waiting_three(wrong)
    failed = [i for i in out if isinstance(i, Fail)]
    assert sorted(i.run for i in failed) == [2, 3, 4]
    assert all(machine.calls[i.run].cancelled for i in failed)
    check_invariants(machine)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: pw.client(""), "a name is needed"),
        (lambda: pw.client("ann", share=0), r"client\('ann', share=0\): a positive number is needed"),
        (lambda: pw.client("ann", share="2"), r"client\('ann', share='2'\): a positive number is needed"),
        (lambda: pw.client("ann", share=True), r"share=True\): a positive number is needed"),
        (lambda: pw.client("ann", priority="high"), r"client\('ann', priority='high'\): a number is needed"),
        (lambda: pw.client("ann", memory="4GB"), r"memory='4GB'\): a number of bytes per device of at least 1 is"),
        (lambda: pw.client("ann", memory=0.5), r"memory=0.5\): a number of bytes per device of at least 1 is"),
        (lambda: pw.client("ann", memory=True), r"memory=True\): a number of bytes per device"),
        (lambda: pw.attach("cpu", policy="best"), r"policy='best': choose one of 'fifo', 'stride', 'priority'"),
        (lambda: pw.attach("cpu", policy=3), "policy=3 is neither a name nor a function"),
    ],
)
def test_wrong_words_are_refused(call, text) -> None:
    with pytest.raises(pw.UsageError, match=text):
        call()


def marked(choose: Any) -> Any:
    return pw.policy(keeps_order=True)(choose)


@pytest.mark.parametrize(
    ("choose", "text"),
    [
        (lambda ready, state: max(ready, key=lambda gang: gang.serial), "it is listed last and takes less time"),
        (lambda ready, state: ready[0], "it is listed first and takes less time"),
        (POLICIES["shortest"], "it is listed last and takes less time"),
        (lambda ready, state: max(ready, key=lambda gang: gang.devices), "it is listed last and takes less time"),
        (lambda ready, state: min(ready, key=lambda gang: gang.expected_seconds or 0), "takes less time"),
        (lambda ready, state: max(ready, key=lambda gang: (gang.expected_seconds or 0) > 1.5), "takes more time"),
    ],
)
def test_a_false_claim_to_keep_order_is_refused_with_the_choice_that_shows_it(choose, text) -> None:
    def own(ready: Any, state: Any) -> Any:
        return choose(ready, state)

    with pytest.raises(pw.UsageError, match=rf"policy own .* says keeps_order=True, but of two .* where .*{text}"):
        pw.attach("cpu", policy=marked(own))
    assert not StateMachine(policy=pw.policy()(own)).in_order


def busy(policy: Any, programs: int) -> StateMachine:
    """A core in which programs of two clients, which are known to take long, wait."""
    state, plan = StateMachine(policy=policy), plan_of([0], 0)
    state.handle(Submitted(0, "ann", plan, (), (0,), (4,)), 0.0)
    state.handle(Completed(0, 0, 0, len(plan.orders[0]), 10.0), 10.0)
    for run in range(1, 1 + programs):
        state.handle(Submitted(run, "ann" if run % 3 else "bob", plan, (), (run,), (4,)), 10.0)
    return state


def test_a_policy_of_the_users_that_keeps_order_is_shown_one_gang_of_each_client() -> None:
    asked = list[int]()

    def by_name(ready: Any, state: Any) -> Any:
        asked.append(len(ready))
        return min(ready, key=lambda gang: (gang.client, gang.serial))

    for keeps, most in ((True, 2), (False, 7)):
        asked.clear()
        state = busy(pw.policy(keeps_order=keeps)(by_name), 9)
        for run in (1, 2):
            state.handle(Completed(run, 0, 0, len(state.calls[run].plan.orders[0]), 10.0), 20.0)
        assert max(asked) == most
        check_invariants(state)


def test_the_invariants_catch_a_claim_that_only_other_programs_show() -> None:
    def odd(ready: Any, state: Any) -> Any:
        return (max if len(ready) > 3 else min)(ready, key=lambda gang: gang.serial)

    with pytest.raises(AssertionError, match=r"the policy says keeps_order=True, but chose run \d"):
        check_invariants(busy(marked(odd), 9))


def test_a_policy_that_cannot_be_marked_is_named() -> None:
    with pytest.raises(pw.UsageError, match=r"policy: write @pw.policy\(keeps_order=True\), with parentheses"):
        pw.policy(POLICIES["fifo"])  # type: ignore[arg-type]
    with pytest.raises(pw.UsageError, match=r"policy: .*method.* cannot be marked; wrap it in a function"):
        marked([].append)
    with pytest.raises(pw.UsageError, match=r"policy: 3 is no function policy\(ready, state\)"):
        marked(3)
