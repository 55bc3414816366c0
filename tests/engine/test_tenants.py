"""Tenants and policies: shares kept, the user's own functions, errors that name their line, nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import deque
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.controller import scheduler
from pathways_nb.controller.invariants import check_invariants
from pathways_nb.controller.messages import Cancelled, Completed, Fail, Launch, Opened, Submitted, Waited
from pathways_nb.controller.policies import POLICIES
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.session import tenant_scope
from tests.engine.machine_devices import plan_of
from tests.waiting import Unseen

v = np.arange(8, dtype=np.float32)
matrix = np.full((8, 8), 0.01, np.float32)


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
                waited[machine.runs[each.run].submitted.client].append((each.since, now))

    def run_all() -> str:
        nonlocal now
        order = ""
        while queue:
            launch, now = queue.pop(0), now + 1.0
            order += machine.runs[launch.run].submitted.client[0]
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
@settings(max_examples=10, deadline=None)
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


def test_who_was_away_cannot_save_up() -> None:
    machine = StateMachine(devices=(1,))
    for run in range(3):
        machine.handle(Submitted(run, "early", plan_of([0]), (), (run,), (8,)))
    machine.clients["early"].charge(100.0, contended=True)
    machine.handle(Submitted(9, "late", plan_of([0]), (), (9,), (8,)))
    assert machine.clients["late"].passed == pytest.approx(machine.clients["early"].passed, abs=0.01)


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
    assert all(machine.runs[i.run].cancelled for i in failed)
    check_invariants(machine)


@pytest.fixture
def short_queues(monkeypatch) -> None:
    """Two gangs fill an island, however short they are: the others wait in the core."""
    monkeypatch.setattr(scheduler, "NEAR", 0.0)
    monkeypatch.setattr(scheduler, "FAR", 0.0)


def square(place: pw.VirtualSlice) -> pw.Program:
    """A program of one computation that has run."""
    f = pw.jit(lambda m: jnp.tanh(m @ m), on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    program = pw.program(lambda m: f(m), name="p")
    program(matrix).wait()
    return program


def test_events_say_whose_they_are_in_threads_and_tasks(controller, left) -> None:
    add = pw.jit(lambda x: x + 1, on=left, in_shardings=pw.P("x"))
    program = pw.program(lambda x: add(x), name="p")
    program(v).wait()

    def work(name: str) -> None:
        with pw.client(name):
            program(v).wait()

    async def task(name: str) -> None:
        with pw.client(name):
            await asyncio.sleep(0)
            program(v).wait()

    async def both() -> None:
        await asyncio.gather(task("carl"), task("dora"))

    with pw.record() as run:
        threads = [threading.Thread(target=work, args=(name,)) for name in ("ann", "bob")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        asyncio.run(both())
        program(v).wait()
    assert sorted(run.events.of_kind("compute")["client"]) == ["", "ann", "bob", "carl", "dora"]
    assert set(run.events.of_kind("enqueue")["client"]) == {"", "ann", "bob", "carl", "dora"}


def test_the_policy_of_a_notebook_is_asked_while_clients_compete(watchdog, short_queues) -> None:
    asked: list[int] = []

    def least_served(ready: Any, state: Any) -> Any:
        asked.append(len(ready))
        return min(ready, key=lambda g: (state.device_seconds[g.client], g.serial))

    with pw.attach("cpu", islands=1, devices_per_island=2, policy=least_served) as here:
        program = square(pw.virtual_slice(2))
        results = []
        with Unseen(here) as unseen:
            for name in ("ann", "bob"):
                with pw.client(name).acting():
                    results += [program(matrix) for _ in range(8)]
            unseen.see_when_waited_for()
            pw.wait(results)
    assert asked
    assert max(asked) >= 2


def test_a_policy_that_raises_names_its_line_and_the_controller_stays_usable(watchdog, short_queues) -> None:
    broken = True

    def mine(ready: Any, state: Any) -> Any:
        if broken:
            return ready[0] / 0
        return ready[0]

    with pw.attach("cpu", islands=1, devices_per_island=2, policy=mine) as here:
        program = square(pw.virtual_slice(2))
        results = []
        with Unseen(here):
            for name in ("ann", "bob"):
                with pw.client(name).acting():
                    results += [program(matrix) for _ in range(8)]
        with pytest.raises(pw.PolicyError, match=r"policy mine raised TypeError: .*test_tenants\.py:\d+"):
            pw.wait(results)
        broken = False
        assert program(matrix).result().shape == matrix.shape


@pytest.mark.slow
def test_many_threads_submit_at_once_and_nothing_is_lost(controller, left) -> None:
    add = pw.jit(lambda x: x + 1, on=left, in_shardings=pw.P("x"))
    program = pw.program(lambda x: add(x), name="p")
    program(v).wait()
    sums: list[float] = []

    def work(name: str) -> None:
        with pw.client(name):
            y = v
            for _ in range(150):
                y = program(y)
            sums.append(float(y.result().sum()))

    threads = [threading.Thread(target=work, args=(f"c{i}",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [float((v + 150).sum())] * 6


def test_cancelling_a_client_leaves_the_others(controller, left, short_queues) -> None:
    program = square(left)
    ann, bob = pw.client("ann"), pw.client("bob")
    with Unseen(controller):
        with ann.acting():
            hers = [program(matrix) for _ in range(8)]
        with bob.acting():
            his = [program(matrix) for _ in range(2)]
        ann.cancel()
    pw.wait(his)
    with pytest.raises(pw.CancelledError):
        pw.wait(hers)


def test_cancelling_sends_what_was_gathered_once(controller, left, monkeypatch) -> None:
    flushed = []
    monkeypatch.setattr(controller, "flush", lambda: flushed.append(1))
    ann = pw.client("ann")
    ann.cancel()
    with ann.acting():
        square(left)(matrix).wait()
    flushed.clear()
    ann.cancel()
    assert flushed == [1]
    controller.cancel(ann)
    assert flushed == [1, 1]


def test_one_client_may_be_entered_by_threads_and_tasks_at_once(controller, left) -> None:
    add = pw.jit(lambda x: x + 1, on=left, in_shardings=pw.P("x"))
    ann, bob = pw.client("ann"), pw.client("bob")
    both, names = threading.Barrier(2), []

    def work() -> None:
        with bob, ann:
            both.wait()
            add(v).wait()
            names.append(tenant_scope.current())
            both.wait()

    async def task(first: asyncio.Event, second: asyncio.Event) -> None:
        with ann:
            first.set()
            await second.wait()  # the other enters before either ends
            add(v).wait()
        names.append(tenant_scope.current())

    async def tasks() -> None:
        one, two = asyncio.Event(), asyncio.Event()
        await asyncio.gather(task(one, two), task(two, one))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(tasks())
    assert names == [ann, ann, None, None]
    assert controller.opened == {}, "the last block has closed it"
    assert "ann" not in tenant_scope._blocks


def test_first_calls_of_several_threads_find_one_engine(controller, left) -> None:
    both, found = threading.Barrier(4), []

    def work() -> None:
        both.wait()
        found.append(controller.driver)

    for _ in range(5):
        pw.reset()
        found.clear()
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [controller.driver] * 4


def test_a_block_closes_the_client_that_another_object_of_its_name_opened(controller, left) -> None:
    add = pw.jit(lambda x: x + 1, on=left, in_shardings=pw.P("x"))
    with pw.client("ann", share=1), pw.client("ann", share=3):
        kept = add(v)
        kept.wait()
        assert controller.machine.clients["ann"].share == 3
    with pytest.raises(pw.LostError):
        kept.result()
    with pw.client("ann", share=2):
        add(v).wait()
        assert controller.machine.clients["ann"].share == 2, "opened again"
    assert controller.opened == {}


def test_loose_calls_of_a_block_that_raises_never_run(controller, left) -> None:
    add = pw.jit(lambda x: x + 1, on=left, in_shardings=pw.P("x"))
    with pw.record() as run:
        with contextlib.suppress(ZeroDivisionError), pw.client("ann"):
            kept = add(v)
            1 / 0  # noqa: B018
        assert controller.opened == {}
    with pytest.raises(pw.CancelledError, match="client ann closed before"):
        kept.result()
    assert run.programs == []
    assert controller.opened == {}, "nothing opened it again"


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


def test_a_policy_that_calls_or_waits_is_refused_instead_of_waiting_for_itself(watchdog, short_queues) -> None:
    made: list[Any] = []

    def calls(ready: Any, state: Any) -> Any:
        made[0](matrix).wait()
        return ready[0]

    with pw.attach("cpu", islands=1, devices_per_island=2, policy=calls) as here:
        program = square(pw.virtual_slice(2))
        made.append(program)
        with Unseen(here):
            results = [program(matrix) for _ in range(8)]
        with pytest.raises(pw.PolicyError, match=r"policy calls raised UsageError: a policy chooses one of the gangs"):
            pw.wait(results)
