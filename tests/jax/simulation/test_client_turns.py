"""Turns of client threads in simulated time: one seed, one trace; who is waited for, and who is named."""

from __future__ import annotations

import asyncio
import gc
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from concurrent.futures import thread as pools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.runtime.sim import blocked_threads, held_up, pool_items, thread_turns
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


@pytest.mark.parametrize("collects", [True, False])
def test_no_garbage_is_collected_while_frames_are_read(monkeypatch: pytest.MonkeyPatch, collects: bool) -> None:
    """Python up to 3.11.8 holds a lock meanwhile that a thread needs to start, and a callback of gc gives up the GIL."""
    states, frames = [], sys._current_frames

    def read() -> dict[int, Any]:
        states.append(gc.isenabled())
        return frames()

    monkeypatch.setattr(sys, "_current_frames", read)
    (gc.enable if collects else gc.disable)()
    try:
        blocked_threads.look(len)
        states.append(gc.isenabled())
    finally:
        gc.enable()
    assert states == [False, collects]


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


def test_threads_that_poll_beside_one_that_waits_have_the_trace_of_three_that_wait(watchdog: None) -> None:
    def trace(polls: int) -> list[list[Any]]:
        with pw.attach("sim:tpu_v3:2x4") as controller, pw.record() as run:
            controller.driver._turns._notice = 0.0  # type: ignore[attr-defined]  # who polls knows at once
            assert not side_by_side(*(polls_or_waits(name, name in "abc"[:polls]) for name in "abc"))
        events = run.events
        rows = [column.tolist() for column in (events["kind"], events["name"], events["client"], events["start"])]
        return [[row[at] for row in rows] for at in range(len(rows[0])) if rows[0][at] in ("compute", "enqueue")]

    assert len(trace(0)) >= 30
    assert trace(0) == trace(2)


def polls_or_waits(name: str, polls: bool) -> Callable[[], None]:
    """A body that calls five times, each time until it is done."""
    work = pw.work({"a": 1e-3, "b": 2e-3, "c": 3e-3}[name], on=left, name=name)

    def body() -> None:
        with pw.client(name):
            for _ in range(5):
                y = work(X)
                while polls and not y.done():
                    pass
                y.wait()

    return body


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
    monkeypatch.setattr(held_up, "NAMED_AFTER", LIMIT)
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


def test_two_threads_never_look_at_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the frames of both would keep what both hold until garbage is collected.

    The second wants to look while the first does: it stands before the lock until the first is through.
    """
    looking, at_the_lock, order = threading.RLock(), threading.Event(), list[str]()

    class Lock:
        def __enter__(self) -> None:
            if threading.current_thread() is second:
                assert not looking.acquire(blocking=False), "the first thread looks without the lock"
                at_the_lock.set()
            looking.acquire()

        def __exit__(self, *_: object) -> None:
            looking.release()

    def looks_at(at: Any) -> None:
        mine = threading.current_thread().name
        order.append(f"{mine} begins")
        if mine == "first":
            second.start()
            assert at_the_lock.wait(LIMIT)
        order.append(f"{mine} ends")

    monkeypatch.setattr(blocked_threads, "_looking", Lock())
    second = threading.Thread(target=blocked_threads.look, args=(looks_at,), name="second", daemon=True)
    first = threading.Thread(target=blocked_threads.look, args=(looks_at,), name="first", daemon=True)
    first.start()
    first.join(LIMIT)
    second.join(LIMIT)
    assert order == ["first begins", "first ends", "second begins", "second ends"]


def test_an_event_loop_that_was_given_a_callback_is_awake_though_it_still_waits() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def sleeps() -> bool:
        return blocked_threads.look(lambda at: blocked_threads.is_asleep(at[thread.ident or 0], at))

    until(sleeps)
    loop.call_soon(loop.stop)  # not thread-safe: nothing wakes its selector
    assert not sleeps()
    loop.call_soon_threadsafe(int)
    thread.join()
    loop.close()


def test_a_frame_between_two_lines_is_looked_at_like_any_other() -> None:
    code = SimpleNamespace(co_filename=__file__, co_firstlineno=1)
    frame: Any = SimpleNamespace(f_lineno=None, f_code=code)
    assert not blocked_threads.is_napping(frame)
    assert blocked_threads.line_of(frame) == 1


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
        blocked_threads.look(lambda at: [blocked_threads.is_asleep(at[thread.ident or 0], at) for thread in threads])
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


def test_who_is_begun_just_before_its_beginner_is_found_asleep_is_waited_for(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    event, gate, frames = threading.Event(), threading.Lock(), blocked_threads._frames
    gate.acquire()
    sleeper, late = (threading.Thread(target=each, daemon=True) for each in (event.wait, gate.acquire))
    sleeper.start()
    until(lambda: blocked_threads.look(lambda at: blocked_threads.is_asleep(at[sleeper.ident or 0], at)))

    def after_it_begins() -> Any:
        if late.ident is None:
            late.start()
        return frames()

    with monkeypatch.context() as looked:
        looked.setattr(blocked_threads, "_frames", after_it_begins)
        assert turns_of(sim)._running(threading.current_thread()) is late
    gate.release()
    event.set()
    late.join()
    sleeper.join()


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
    monkeypatch.setattr(held_up, "NAMED_AFTER", 0.05)
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


def test_a_daemon_that_never_calls_and_sleeps_is_no_client(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(held_up, "NAMED_AFTER", LIMIT)  # so that time does not pass because it was set apart
    over = []

    def monitor() -> None:
        while not over:
            time.sleep(0.01)

    thread = threading.Thread(target=monitor, daemon=True)
    thread.start()
    pw.work(1e-3, on=left)(X).wait()
    assert thread not in turns_of(sim)._apart
    over.append(True)
    thread.join()
    assert not capsys.readouterr().err


def test_a_thread_that_never_calls_is_named_and_not_waited_for(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(held_up, "NAMED_AFTER", 0.05)
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
    monkeypatch.setattr(held_up, "NAMED_AFTER", 0.05)
    monkeypatch.setattr(held_up, "REFUSED_AFTER", 0.3)
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
        r"simulated time stands still: thread 'holder' \(at test_client_turns\.py:\d+\) neither calls, waits nor ends: it "
        r"waits for gate, which is locked\. If it only computes, the others go on when it has; if it waits for a lock that one of them holds, release that "
        r"before y\.wait\(\), or use a threading\.Condition\. Else let it wait by y\.wait\(\) or while not y\.done\(\), "
        r"leave its `with` block, or end\."
    )
    try:
        with pytest.raises(pw.UsageError, match=text):
            pw.work(1e-3, on=left)(X)
    finally:
        gate.release()
    said = capsys.readouterr().err
    assert said.count("thread 'holder'") == 1
    assert "sleeps in time.sleep, or on a raw lock, is not seen to sleep: after 0 s it is an error" in said
    thread.join()
    pw.work(1e-3, on=left)(X).wait()


def test_a_thread_that_calls_again_and_again_beside_one_that_waits_for_long_holds_nobody_up(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(held_up, "monotonic", lambda: 1000 * sim.clock())  # each of her calls takes a second
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
    until(lambda: blocked_threads.look(lambda at: blocked_threads.is_asleep(at[thread.ident or 0], at)))
    loop._ready.append(asyncio.Handle(loop.stop, (), loop))  # as call_soon_threadsafe does, before it wakes the loop
    assert not blocked_threads.look(lambda at: blocked_threads.is_asleep(at[thread.ident or 0], at))
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_traced_body_that_waits_for_something_of_the_users_is_named(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_up, "NAMED_AFTER", 0.05)
    monkeypatch.setattr(held_up, "REFUSED_AFTER", 0.3)
    gate, inside = threading.Lock(), threading.Event()
    gate.acquire()

    def stuck(x: Any) -> Any:
        inside.set()
        gate.acquire()
        return x + 1

    program = pw.program(pw.jit(stuck, on=left), name="stuck")

    def first() -> None:
        with pw.client("ann"):
            program(X).wait()

    thread = threading.Thread(target=first, name="first", daemon=True)
    thread.start()
    assert inside.wait(LIMIT)
    try:
        with pytest.raises(
            pw.UsageError,
            match=r"stands still: thread 'first' \(at test_client_turns\.py:\d+\), in its call of 'stuck', neither calls, "
            r"waits nor ends: it waits for gate, which is locked\. .* Until then wait: 'MainThread' "
            r"\(at test_client_turns\.py:\d+\) for its turn to call 'stuck'\.$",
        ):
            program(X)
    finally:
        gate.release()
    thread.join()
    program(X).wait()


def test_who_calls_a_program_that_waits_while_another_thread_traces_it_waits_too(sim: pw.Controller) -> None:
    """It stands at a point meanwhile, so that time passes for the one that traces."""
    traces: list[str] = []

    def waits(x: Any) -> Any:
        traces.append(threading.current_thread().name)
        until(lambda: len(turns_of(sim)._points) == 1)
        pw.put(np.zeros(8, "f4"), on=left)
        return x + 1

    program = pw.program(pw.jit(waits, on=left), name="waits")
    assert not side_by_side(lambda: program(X).wait(), lambda: program(X).wait())
    assert len(traces) == 1


def test_what_holds_the_lock_that_a_thread_waits_for_is_named(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_up, "NAMED_AFTER", 0.05)
    monkeypatch.setattr(held_up, "REFUSED_AFTER", 0.3)
    gate, inside = threading.RLock(), threading.Event()

    def waiter() -> None:
        with pw.client("ann"):
            pw.work(1e-3, on=left)(X)
            inside.set()
            with gate:
                pass

    thread = threading.Thread(target=waiter, name="waiter", daemon=True)
    text = (
        r"thread 'waiter' \(at test_client_turns\.py:\d+\) neither calls, waits nor ends: it waits for gate, which thread "
        r"'MainThread' \(at test_client_turns\.py:\d+\) holds\. If it only"
    )
    with gate:
        thread.start()
        assert inside.wait(LIMIT)
        with pytest.raises(pw.UsageError, match=text):
            pw.work(1e-3, on=left)(X)
    thread.join()


def test_what_holds_a_plain_lock_is_named_with_what_it_waits_for(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain lock does not record its owner, so blocks of ``with`` are looked at."""
    monkeypatch.setattr(held_up, "NAMED_AFTER", 0.05)
    monkeypatch.setattr(held_up, "REFUSED_AFTER", 0.3)
    shared, inside = SimpleNamespace(gate=threading.Lock()), threading.Event()

    def waiter() -> None:
        with pw.client("ann"):
            pw.work(1e-3, on=left)(X)
            inside.set()
            with shared.gate:
                pass

    thread = threading.Thread(target=waiter, name="waiter", daemon=True)
    work = pw.program(pw.work(1e-3, on=left), name="short")
    text = (
        r"thread 'waiter' \(at test_client_turns\.py:\d+\) neither calls, waits nor ends: it waits for shared\.gate, which "
        r"thread 'MainThread' \(at test_client_turns\.py:\d+\) holds\. If it only .* Until then wait: 'MainThread' "
        r"\(at test_client_turns\.py:\d+\) for its turn to call 'short'\.$"
    )
    with shared.gate:
        thread.start()
        assert inside.wait(LIMIT)
        with pytest.raises(pw.UsageError, match=text):
            work(X)
    thread.join()


def test_the_lock_of_a_condition_is_named_by_the_condition() -> None:
    condition = threading.Condition()
    with condition:
        assert held_up._held_lock(condition and sys._getframe(), {}) == ("condition", threading.get_ident())


def test_what_is_said_of_a_thread_is_out_of_date_when_it_calls(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_up, "NAMED_AFTER", 0.05)
    said, one, other = list[str](), *socket.socketpair()
    monkeypatch.setattr(turns_of(sim)._held_up, "_say", lambda line: said.append(line) or False)

    def late() -> None:
        one.recv(1)
        pw.work(1e-3, on=left)(X).wait()

    thread = threading.Thread(target=late, name="late", daemon=True)
    thread.start()
    pw.work(1e-3, on=left)(X).wait()
    assert [line[:43] for line in said] == ["simulated time goes on without thread 'late"]
    other.send(b"x")
    thread.join()
    assert said[1:] == [""]
    one.close()
    other.close()


def test_a_thread_comes_to_a_point_and_says_so_under_one_lock(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, held = turns_of(sim)._lock, list[bool]()
    look, is_idle = thread_turns.Turns._look, thread_turns.Turns._is_idle

    class Inbox:
        def empty(self) -> bool:
            held.append(lock._is_owned())  # type: ignore[attr-defined]
            return True

    def looks(self: thread_turns.Turns) -> None:
        if threading.current_thread() in self._points:
            held.append(lock._is_owned())  # type: ignore[attr-defined]
        look(self)

    monkeypatch.setattr(thread_turns.Turns, "_look", looks)
    pw.work(1e-3, on=left)(X).wait()
    engine: Any = SimpleNamespace(inbox=Inbox())
    assert is_idle(turns_of(sim), engine)
    assert len(held) >= 2
    assert all(held)


def test_a_pools_worker_that_has_been_handed_an_item_is_awake() -> None:
    with ThreadPoolExecutor(2) as pool:
        assert pool.submit(int).result() == 0
        (worker,) = pool._threads

        def is_asleep() -> bool:
            return blocked_threads.look(lambda at: blocked_threads.is_asleep(at[worker.ident or 0], at))

        until(is_asleep)
        assert pool._idle_semaphore.acquire(blocking=False)  # as submit does; its queue is empty again before the
        assert not is_asleep()  # worker's next line
        pool._idle_semaphore.release()
        assert is_asleep()


@pytest.mark.parametrize("mode", ["wait", "call"])
def test_an_event_loop_that_hands_work_to_threads_beside_a_client_has_one_trace(watchdog: None, mode: str) -> None:
    assert len({to_thread_trace(mode) for _ in range(10)}) == 1


def to_thread_trace(mode: str) -> tuple[Any, ...]:
    """Events of two tasks that wait, or call, in threads of ``asyncio.to_thread``, beside a client's thread."""
    with same_trace.often(), pw.attach("sim:tpu_v3:2x4", seed=3, noise=0.2), pw.record() as run:
        works = {name: pw.work(1e-3, on=left, name=name) for name in ("a", "b", "c")}

        def body(name: str) -> None:
            works[name](X).wait()

        async def task(name: str) -> None:
            for _ in range(3):
                await asyncio.to_thread(works[name](X).wait if mode == "wait" else lambda: body(name))

        async def tasks() -> None:
            await asyncio.gather(task("a"), task("b"))

        def thread() -> None:
            with pw.client("cat"):
                for _ in range(6):
                    body("c")

        assert not side_by_side(lambda: asyncio.run(tasks()), thread)
    return tuple(tuple(run.events[column].tolist()) for column in same_trace.COLUMNS)


@pytest.mark.parametrize("kind", ["python", "same name", "completed"])
def test_items_of_pools_end_in_one_order_however_long_they_take(watchdog: None, kind: str) -> None:
    assert len({item_trace(kind, "ab"[number % 2]) for number in range(4)}) == 1


def item_trace(kind: str, slow: str) -> tuple[Any, ...]:
    """Events of two tasks and a client beside them; items of the ``slow`` task compute for longer in Python."""
    with pw.attach("sim:tpu_v3:2x4", seed=3, noise=0.2), pw.record() as run:
        works = {name: pw.work(1e-3, on=left, name=name) for name in ("a", "b", "c", "shared")}

        def item(name: str, does: Callable[[], object]) -> str:
            sum(range(400_000 if name == slow else 1))
            does()
            sum(range(400_000 if name == slow else 1))
            return name

        async def task(name: str) -> None:
            for _ in range(3):
                does = int if kind == "python" else lambda: works["shared"](X).wait()
                await asyncio.to_thread(item, name, does)
                works[name](X)

        async def tasks() -> None:
            await asyncio.gather(task("a"), task("b"))

        def completed() -> None:
            with ThreadPoolExecutor(2) as pool:
                for _ in range(3):
                    for done in as_completed([pool.submit(item, name, int) for name in "ab"]):
                        works[done.result()](X).wait()

        def thread() -> None:
            with pw.client("cat"):
                for _ in range(6):
                    works["c"](X).wait()

        assert not side_by_side(completed if kind == "completed" else lambda: asyncio.run(tasks()), thread)
    return tuple(tuple(run.events[column].tolist()) for column in same_trace.COLUMNS)


def test_an_item_taken_from_a_full_pools_queue_is_known_before_it_begins(sim: pw.Controller) -> None:
    """Its worker seems idle: up to Python 3.11 the pool counts one idle worker too many, once an item had to queue."""
    go, ran = threading.Event(), list[int]()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(go.wait)
        until(lambda: pool._work_queue.empty() and not pool_items.is_handed(pool))
        pool.submit(ran.append, 1)
        assert not pool_items.is_handed(pool)  # it is in the queue
        item = pool._work_queue.get_nowait()
        assert pool_items.is_handed(pool)
        go.set()
        assert first.result()
        (worker,) = pool._threads

        def is_asleep() -> bool:
            return blocked_threads.look(lambda at: blocked_threads.is_asleep(at[worker.ident or 0], at))

        until(lambda: pool._idle_semaphore._value == 1)
        assert not is_asleep()
        item.run()
        assert ran == [1]
        assert not pool_items.is_handed(pool)
        until(is_asleep)


def test_an_item_that_is_waited_for_without_an_end_begins_all_the_same(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_up, "NAMED_AFTER", 0.05)
    pw.work(1e-3, on=left)(X).wait()
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(int, text) for text in "12"]
        until(lambda: all(item.done() for item in found))  # it sleeps, which is not taken for a wait
    assert [item.result() for item in found] == [1, 2]


def test_what_a_trace_hands_to_a_pool_belongs_to_its_call(sim: pw.Controller) -> None:
    def traced(x: Any) -> Any:
        with ThreadPoolExecutor(2) as pool:
            return x * sum(pool.map(int, "12"))

    bodies = [lambda: pw.jit(traced, on=left)(X).wait(), lambda: pw.work(1e-3, on=left)(X).wait()]
    assert not side_by_side(*bodies)


def test_without_simulated_devices_pools_are_as_they_were(controller: pw.Controller) -> None:
    assert pools._WorkItem is pool_items._Original, "a simulated one that was current before is closed"
    with pw.attach("sim:tpu_v3:1x4"):
        assert pools._WorkItem is pool_items.Item
    assert pools._WorkItem is pool_items._Original


def test_a_thread_that_compiles_for_long_is_not_taken_for_one_that_holds_the_others_up(
    sim: pw.Controller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looked, over, hold = list[int](), threading.Event(), thread_turns.Turns._hold
    compiler: dict[str, Any] = {}  # a wait in this package's own code, as for a compiler
    exec(compile("def wait(over): over.wait()", pw.__file__, "exec"), compiler)

    def slow(x: Any) -> Any:
        until(lambda: len(turns_of(sim)._points) > 0)
        compiler["wait"](over)
        return x + 1

    def hold_without_patience(self: thread_turns.Turns, thread: threading.Thread | None) -> None:
        with monkeypatch.context() as patience:
            if over._cond._waiters:  # type: ignore[attr-defined]
                looked.append(1)
                patience.setattr(held_up, "NAMED_AFTER", 0.0)
                patience.setattr(held_up, "REFUSED_AFTER", 0.0)
            hold(self, thread)
        if len(looked) > 3:
            over.set()

    monkeypatch.setattr(thread_turns.Turns, "_hold", hold_without_patience)
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


@pytest.mark.parametrize("ask", ["graph", "peaks", "predict"])
def test_whoever_asks_about_a_program_calls_while_it_is_traced(sim: pw.Controller, ask: str) -> None:
    calling: list[bool] = []

    def traced(x: Any) -> Any:
        calling.append(threading.current_thread() in turns_of(sim)._calling)
        return x + 1

    program = pw.program(pw.jit(traced, on=left), name="asked")
    {
        "graph": program.graph,
        "peaks": program.peaks,
        "predict": lambda x: pw.predict(program, x, seconds={"traced": 1}),
    }[ask](X)
    assert calling == [True]


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
        with pytest.raises(RuntimeError, match="the controller's event loop has stopped"):
            y.done()
        controller.driver.event_loop.failure = None


def test_a_frame_that_runs_is_awake_and_one_that_sleeps_is_asleep() -> None:
    event = threading.Event()
    thread = threading.Thread(target=event.wait)
    thread.start()
    until(lambda: blocked_threads.look(lambda at: blocked_threads.is_asleep(at[thread.ident or 0], at)))
    assert blocked_threads.look(lambda at: threading.get_ident() not in at)
    event.set()
    thread.join()
