"""Turns of client threads in simulated time: one seed, one trace; who is waited for, and who is named."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pathways_nb as pw
from pathways_nb.runtime.sim import blocked_threads, thread_turns
from tests.jax.simulation import same_trace
from tests.support.simulated import X, is_empty, left, right
from tests.support.waiting import LIMIT, until


def turns_of(controller: pw.Controller) -> thread_turns.Turns:
    """Who runs next, of the threads of this controller."""
    return controller.driver._turns


@pytest.fixture
def sim(watchdog: None) -> Iterator[pw.Controller]:
    with pw.attach("sim:tpu_v3:2x4") as controller:
        yield controller
        assert controller.closed or is_empty(controller)


def side_by_side(*bodies: Callable[[], Any]) -> list[BaseException]:
    """Carry out each in a thread of its own; what they raised."""
    errors: list[BaseException] = []

    def use(body: Callable[[], Any]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not any(thread.is_alive() for thread in threads), "they wait for each other"
    return errors


def works(seconds: float, calls: int, seen: list[float], controller: pw.Controller) -> Callable[[], None]:
    """A body that calls so often, waits each time, and notes the time."""
    work = pw.work(seconds, on=left)

    def body() -> None:
        for _ in range(calls):
            work(X).wait()
            seen.append(controller.clock())

    return body


def test_thirty_runs_of_three_client_threads_have_one_trace() -> None:
    found = same_trace.traces(30, 2)
    (trace,) = found
    assert len(trace[0]) > 300
    assert set(trace[same_trace.COLUMNS.index("client")]) > set(same_trace.CLIENTS)


def test_another_seed_has_another_trace() -> None:
    assert same_trace.trace(7) != same_trace.trace(8)


def test_the_command_prints_the_number_of_different_traces(capsys: pytest.CaptureFixture[str]) -> None:
    assert same_trace.main(["--runs", "2", "--busy", "0"]) == 0
    assert "2 runs of seed 7: 1 different traces of {" in capsys.readouterr().out


def test_polling_lets_time_pass_until_it_is_done(sim: pw.Controller) -> None:
    y = pw.work(1.0, on=left)(X)
    polls = 0
    while not y.done():
        polls += 1
    assert 0 < polls < 100
    assert sim.clock() == pytest.approx(1.0, rel=0.01)
    clock = sim.clock()
    assert y.done()
    assert "done" in repr(y)
    assert sim.clock() == clock, "neither what is known nor a repr costs time"


def test_a_gathered_call_that_is_polled_goes_out(sim: pw.Controller) -> None:
    with pw.record():
        y = pw.work(1e-3, on=left)(X)
        assert "not computed yet" in repr(y)
        while not y.done():
            pass


def test_a_thread_that_polls_waits_for_its_turn(sim: pw.Controller) -> None:
    """Two threads poll and one waits: the trace is that of three that wait."""

    def times(poll: bool) -> list[float]:
        ends = []
        for seconds in (1e-3, 2e-3, 3e-3):
            work = pw.work(seconds, on=left, name=f"{seconds}")

            def body(work: Any = work) -> None:
                for _ in range(5):
                    y = work(X)
                    while poll and not y.done():
                        pass
                    y.wait()
                ends.append(sim.clock())

            bodies.append(body)
        assert not side_by_side(*bodies)
        return ends

    bodies: list[Callable[[], None]] = []
    polled = times(True)
    assert len(polled) == 3
    assert sim.clock() >= 30e-3


def test_who_waits_first_does_not_run_ahead_of_who_is_still_to_call(sim: pw.Controller) -> None:
    """The main thread starts the second thread late, in real time: simulated time has stood still for it."""
    seen: dict[str, list[float]] = {"early": [], "late": []}
    early = threading.Thread(target=works(1e-3, 5, seen["early"], sim))
    late = threading.Thread(target=works(1e-3, 5, seen["late"], sim))
    early.start()
    until(lambda: bool(turns_of(sim)._points))
    assert sim.clock() == 0.0
    late.start()
    early.join()
    late.join()
    assert abs(seen["early"][0] - seen["late"][0]) < 3e-3
    assert len(seen["late"]) == 5


@pytest.mark.parametrize("name", ["event", "barrier", "queue", "future"])
def test_a_thread_that_sleeps_until_another_wakes_it_lets_time_pass(sim: pw.Controller, name: str) -> None:
    event, barrier, items = threading.Event(), threading.Barrier(2), queue.Queue[int]()
    with ThreadPoolExecutor(1) as pool:
        sleep, wake = {
            "event": (event.wait, event.set),
            "barrier": (barrier.wait, barrier.wait),
            "queue": (items.get, lambda: items.put(1)),
            "future": (lambda: pool.submit(event.wait).result(), event.set),
        }[name]

        def sleeper() -> None:
            with pw.client("ann"):
                sleep()
                pw.work(1e-3, on=left)(X).wait()

        def waker() -> None:
            with pw.client("bob"):
                pw.work(2e-3, on=left)(X).wait()
                wake()

        assert not side_by_side(sleeper, waker)
    assert sim.clock() >= 3e-3


def test_what_a_thread_lets_go_of_after_its_block_is_gone_at_the_time_at_which_it_left(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_turns, "NAMED_AFTER", LIMIT)
    seen: list[float] = []

    def leaver() -> None:
        with pw.client("ann"):
            y = pw.work(1e-3, on=left)(X)
            y.wait()
        seen.append(sim.clock())
        for _ in range(300):
            sum(range(3000))  # awake, while the other thread would have it go on
        del y
        seen.append(sim.clock())

    def stayer() -> None:
        with pw.client("bob"):
            for _ in range(20):
                pw.work(1e-3, on=left)(X).wait()

    assert not side_by_side(leaver, stayer)
    assert seen[0] == seen[1] < sim.clock()


def test_two_threads_never_look_at_each_other() -> None:
    """Else the frames of both would keep what both hold until garbage is collected."""
    inside, looks = threading.Semaphore(0), list[int]()

    def looks_at(at: Any) -> None:
        looks.append(1)
        inside.release()
        assert len(looks) == 1, "another thread looks, too"
        if threading.current_thread() is first:
            until(lambda: second.ident is not None)
        assert len(looks) == 1, "another thread looks, too"
        looks.pop()

    first, second = (threading.Thread(target=blocked_threads.look, args=(looks_at,)) for _ in range(2))
    first.start()
    inside.acquire()
    second.start()
    first.join()
    second.join()
    assert not looks


def test_a_condition_on_which_threads_come_and_go_can_be_looked_at() -> None:
    condition, over = threading.Condition(), list[bool]()

    def waits() -> None:
        while not over:
            with condition:
                condition.wait(1e-6)

    threads = [threading.Thread(target=waits, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(2000):
        blocked_threads.look(lambda at: [blocked_threads.is_asleep(at[thread.ident or 0]) for thread in threads])
    over.append(True)
    for thread in threads:
        thread.join()


def test_who_begins_while_others_are_looked_at_is_waited_for(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    event, frames = threading.Event(), blocked_threads._frames
    late = threading.Thread(target=event.wait)

    def before_it_begins() -> Any:
        found = frames()
        late.start()
        until(lambda: late.ident is not None)
        return found

    with monkeypatch.context() as looked:
        looked.setattr(blocked_threads, "_frames", before_it_begins)
        looked.setattr(threading, "enumerate", lambda: [late])
        assert turns_of(sim)._running() is late
    event.set()
    late.join()


def test_who_thinks_that_it_is_alone_has_looked_who_came_meanwhile(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bob asks whether another thread runs just as ann comes to her call; she is before him in the order."""
    order: list[str] = []
    running, asked = thread_turns.Turns._running, threading.Event()

    def meanwhile(self: thread_turns.Turns, mine: threading.Thread | None = None) -> threading.Thread | None:
        if mine is bob and not asked.is_set():
            asked.set()
            until(lambda: ann in self._points)
        return running(self, mine)

    monkeypatch.setattr(thread_turns.Turns, "_running", meanwhile)

    def client(name: str) -> None:
        work = pw.work(1e-3, on=left, name=name)
        with pw.client(name):
            if name == "ann":
                asked.wait()
            work(X)
            order.append(name)

    ann, bob = (threading.Thread(target=client, args=(name,)) for name in ("ann", "bob"))
    ann.start()
    bob.start()
    ann.join()
    bob.join()
    assert order == ["ann", "bob"]


def test_a_thread_that_has_left_and_does_something_else_is_not_waited_for_for_long(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(thread_turns, "NAMED_AFTER", 0.05)
    gate = threading.Lock()
    gate.acquire()
    left_it = threading.Event()

    def leaver() -> None:
        with pw.client("ann"):
            pw.work(1e-3, on=left)(X).wait()
        left_it.set()
        gate.acquire()  # a raw lock: nobody can tell that it sleeps

    thread = threading.Thread(target=leaver)
    thread.start()
    left_it.wait()
    pw.work(1e-3, on=left)(X).wait()
    gate.release()
    thread.join()
    assert not capsys.readouterr().err


def test_a_daemon_that_never_calls_and_sleeps_is_no_client(sim: pw.Controller) -> None:
    over = []

    def monitor() -> None:
        while not over:
            time.sleep(0.01)

    thread = threading.Thread(target=monitor, daemon=True)
    thread.start()
    pw.work(1e-3, on=left)(X).wait()
    over.append(True)
    thread.join()


def test_a_thread_that_never_calls_is_named_and_not_waited_for(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(thread_turns, "NAMED_AFTER", 0.05)
    one, other = socket.socketpair()
    thread = threading.Thread(target=lambda: one.recv(1), name="reader", daemon=True)
    thread.start()
    pw.work(1e-3, on=left)(X).wait()
    pw.work(1e-3, on=left)(X).wait()
    said = capsys.readouterr().err
    assert said.count("simulated time goes on without thread 'reader' (at test_client_turns.py:") == 1
    other.send(b"x")
    thread.join()
    one.close()
    other.close()


def test_a_thread_that_holds_the_others_up_is_named(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(thread_turns, "NAMED_AFTER", 0.05)
    monkeypatch.setattr(thread_turns, "REFUSED_AFTER", 0.3)
    gate, inside = threading.Lock(), threading.Event()
    gate.acquire()

    def holder() -> None:
        with pw.client("ann"):
            pw.work(1e-3, on=left)(X)
            inside.set()
            gate.acquire()

    thread = threading.Thread(target=holder, name="holder", daemon=True)
    thread.start()
    inside.wait()
    text = (
        r"simulated time stands still: thread 'holder' \(at test_client_turns\.py:\d+\) neither calls, waits nor ends\. If it "
        r"only computes, the others go on when it has; if it waits for a lock that one of them holds, release that "
        r"before y\.wait\(\), or use a threading\.Condition\. Else let it wait by y\.wait\(\) or while not y\.done\(\), "
        r"leave its `with` block, or end\."
    )
    try:
        with pytest.raises(pw.UsageError, match=text):
            pw.work(1e-3, on=left)(X)
    finally:
        gate.release()
    assert capsys.readouterr().err.count("thread 'holder'") == 1
    thread.join()
    pw.work(1e-3, on=left)(X).wait()


def test_a_thread_that_calls_again_and_again_beside_one_that_waits_for_long_holds_nobody_up(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(thread_turns, "monotonic", lambda: 1000 * sim.clock())  # each of her calls takes a second
    long, short = pw.work(2.0, on=right), pw.work(1e-3, on=left)

    def waits() -> None:
        with pw.client("bob"):
            long(X).wait()

    def calls() -> None:
        with pw.client("ann"):
            for _ in range(100):
                short(X).wait()

    assert not side_by_side(waits, calls)
    assert "stands still" not in capsys.readouterr().err


def test_an_event_loop_that_another_thread_has_given_something_is_awake() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    until(lambda: blocked_threads.look(lambda at: blocked_threads.is_asleep(at[thread.ident or 0])))
    loop._ready.append(asyncio.Handle(loop.stop, (), loop))  # as call_soon_threadsafe does, before it wakes the loop
    assert not blocked_threads.look(lambda at: blocked_threads.is_asleep(at[thread.ident or 0]))
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_thread_that_compiles_for_long_is_not_taken_for_one_that_holds_the_others_up(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looked: list[int] = []

    def slow(x: Any) -> Any:
        until(lambda: len(turns_of(sim)._points) > 0)
        with monkeypatch.context() as patience:
            patience.setattr(thread_turns, "NAMED_AFTER", 0.0)
            patience.setattr(thread_turns, "REFUSED_AFTER", 0.0)
            looks = len(looked)
            until(lambda: len(looked) > looks + 3)
        return x + 1

    hold = thread_turns.Turns._hold
    monkeypatch.setattr(thread_turns.Turns, "_hold", lambda self, thread: (looked.append(1), hold(self, thread))[1])
    program = pw.program(pw.jit(slow, on=left), name="slow")

    def compiles() -> None:
        with pw.client("ann"):
            program(X).wait()

    def waits() -> None:
        with pw.client("bob"):
            pw.work(1e-3, on=left)(X).wait()

    assert not side_by_side(compiles, waits)
    assert len(looked) > 3
    assert not capsys.readouterr().err


def test_tasks_of_one_loop_take_turns(sim: pw.Controller) -> None:
    async def client(name: str, seconds: float) -> list[float]:
        work, seen = pw.work(seconds, on=left, name=name), []
        for _ in range(3):
            await_me = work(X)
            with pytest.raises(pw.UsageError, match="simulated devices compute none"):
                await await_me
            seen.append(sim.clock())
        return seen

    async def both() -> list[list[float]]:
        return list(await asyncio.gather(client("a", 1e-3), client("b", 2e-3)))

    a, b = asyncio.run(both())
    assert a == sorted(a)
    assert b == sorted(b)
    assert max(*a, *b) == pytest.approx(9e-3, rel=0.2)


def test_an_event_loop_and_a_thread_beside_it_have_one_trace(watchdog: None) -> None:
    def trace() -> list[Any]:
        with pw.attach("sim:tpu_v3:2x4", seed=3, noise=0.2), pw.record() as run:
            works = {name: pw.work(1e-3, on=left, name=name) for name in ("a", "b", "c")}

            async def client(name: str) -> None:
                for _ in range(4):
                    y = works[name](X)
                    with pytest.raises(pw.UsageError):
                        await y
                    await asyncio.sleep(0)

            async def both() -> None:
                await asyncio.gather(client("a"), client("b"))

            def thread() -> None:
                with pw.client("cat"):
                    for _ in range(6):
                        works["c"](X).wait()

            assert not side_by_side(lambda: asyncio.run(both()), thread)
        return [run.events[column].tolist() for column in ("kind", "name", "client", "start", "end", "run")]

    assert trace() == trace() == trace() == trace()


def test_a_block_leaves_the_controller_that_it_entered(sim: pw.Controller) -> None:
    with pw.client("ann"):
        pw.work(1e-3, on=left)(X).wait()
        with pw.attach("sim:tpu_v3:1x4", seed=1) as other:
            inner = turns_of(other)
    assert turns_of(sim)._blocks[threading.main_thread()] == 1
    assert threading.main_thread() in inner._blocks


def test_who_polls_learns_that_the_engine_has_failed(watchdog: None) -> None:
    with pw.attach("sim:tpu_v3:1x4") as controller:
        y = pw.work(1.0, on=pw.virtual_slice(4))(X)
        controller.driver.event_loop.failure = ValueError("broken on purpose")
        with pytest.raises(RuntimeError, match="the controller's engine has stopped"):
            y.done()
        controller.driver.event_loop.failure = None


def test_a_frame_that_runs_is_awake_and_one_that_sleeps_is_asleep() -> None:
    event = threading.Event()
    thread = threading.Thread(target=event.wait)
    thread.start()
    until(lambda: blocked_threads.look(lambda at: blocked_threads.is_asleep(at[thread.ident or 0])))
    assert blocked_threads.look(lambda at: threading.get_ident() not in at)
    event.set()
    thread.join()
