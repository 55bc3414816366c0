"""Tenants and policies: shares kept, the user's own functions, errors that name their line, nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.controller import scheduler
from pathways_nb.session import tenant_scope
from tests.support.waiting import Unseen

v = np.arange(8, dtype=np.float32)
matrix = np.full((8, 8), 0.01, np.float32)


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
