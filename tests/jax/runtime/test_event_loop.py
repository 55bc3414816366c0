"""Who hands events to the controller: in which thread, in which order, and what wakes whom."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.controller.events_and_instructions import Completed, Event, Submitted
from pathways_nb.util.waiting import Condition
from tests.support.waiting import until, waiters

v = np.arange(8, dtype=np.float32)
Handed = list[tuple[str, Event]]


@pytest.fixture
def add(left) -> pw.Program:
    """A program of one computation that has run."""
    one = pw.jit(lambda x: x + 1, on=left, in_shardings=pw.P("x"))
    program = pw.program(lambda x: one(x), name="add")
    program(v).wait()
    return program


@pytest.fixture
def handed(controller, add, quiet, monkeypatch) -> Iterator[Handed]:
    """Every event that the controller is handed, with the thread that hands it."""
    quiet(controller)
    seen: Handed = []
    handle = controller.machine.handle

    def spied(event: Event, now: float) -> Any:
        seen.append((threading.current_thread().name, event))
        return handle(event, now)

    monkeypatch.setattr(controller.machine, "handle", spied)
    yield seen
    quiet(controller)


def in_thread(body: Callable[[], Any]) -> Any:
    """What ``body`` returns in a thread of its own, named ``"client"``."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(body()), name="client")
    thread.start()
    thread.join()
    return found[0]


def submitted(handed: Handed) -> list[tuple[str, int]]:
    return [(thread, event.run) for thread, event in handed if isinstance(event, Submitted)]


def test_the_main_thread_posts_and_others_hand_over_themselves(controller, add, handed, quiet) -> None:
    add(v).wait()
    quiet(controller)  # now the engine thread has done with what was posted
    in_thread(lambda: add(v).wait())
    assert [thread for thread, _ in submitted(handed)] == ["pathways-event-loop", "client"]
    ended = {thread for thread, event in handed if isinstance(event, Completed)}
    assert ended <= {"pathways-watch-0", "pathways-island-0"}  # whichever is last: the end, or the row that says it


def test_a_threads_call_does_not_overtake_one_that_was_posted(controller, add, left, handed, quiet) -> None:
    x = pw.put(v, on=left, shardings=pw.P("x"))
    with controller.driver.event_loop.deciding:  # the engine thread can take what is posted, and no more
        y = add(x)
        z = in_thread(lambda: add(y))  # it returns: what it called has been posted, too
    quiet(controller)
    np.testing.assert_array_equal(z.result(), v + 2)
    w = in_thread(lambda: add(z))
    np.testing.assert_array_equal(w.result(), v + 3)
    order = submitted(handed)
    assert [run for _, run in order] == sorted(run for _, run in order)
    assert [thread for thread, _ in order] == ["pathways-event-loop", "pathways-event-loop", "client"]


def test_calls_of_many_threads_reach_the_controller_in_the_order_of_their_numbers(add, handed) -> None:
    def work(name: str) -> None:
        with pw.client(name):
            y = v
            for _ in range(20):
                y = add(y)
            np.testing.assert_array_equal(y.result(), v + 20)

    threads = [threading.Thread(target=work, args=(f"c{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    y = v
    for _ in range(20):
        y = add(y)
    np.testing.assert_array_equal(y.result(), v + 20)
    for thread in threads:
        thread.join()
    order = [run for _, run in submitted(handed)]
    assert len(order) == 80
    assert order == sorted(order)


@pytest.mark.parametrize("broken", [Submitted, Completed])
def test_a_broken_core_leaves_nobody_waiting_and_says_so_at_the_next_call(watchdog, monkeypatch, broken) -> None:
    with pw.attach("cpu", islands=1, devices_per_island=2) as controller:
        one = pw.jit(lambda x: x + 1, on=pw.virtual_slice(2))
        one(v).wait()
        controller.driver.wait_idle()  # a value is ready before the core hears that its launch is completed
        handle = controller.machine.handle

        def breaks(event: Event, now: float) -> Any:
            assert not isinstance(event, broken), "it broke"
            return handle(event, now)

        monkeypatch.setattr(controller.machine, "handle", breaks)
        future = in_thread(lambda: one(v))
        controller.driver.wait_idle()
        assert controller.driver.broken
        with pytest.raises(RuntimeError, match=r"event loop has stopped; pw\.reset\(\) starts it anew"):
            one(v)
        del future
        pw.reset()
        np.testing.assert_array_equal(one(v).result(), v + 1)


def test_a_thread_whose_program_lacks_memory_is_told_so(watchdog) -> None:
    """The engine thread sleeps without end when that thread is told to be woken later."""
    with pw.attach("cpu", islands=1, devices_per_island=1, hbm=3000):
        place = pw.virtual_slice(1)
        double = pw.jit(lambda x: x * 2, on=place)
        held = [pw.put(np.ones(256, np.float32), on=place) for _ in range(2)]
        future = in_thread(lambda: double(held[0]))
        with pytest.raises(pw.OutOfMemoryError, match="lacks"):
            future.wait()


class TestBell:
    def test_wakes_those_only_whose_wait_is_over(self) -> None:
        bell, over = Condition(), set[str]()
        threads = {n: threading.Thread(target=bell.wait, args=(lambda n=n: n in over,)) for n in ("ann", "bob")}
        for thread in threads.values():
            thread.start()
        until(lambda: waiters(bell) == 2)
        over.add("bob")
        bell.notify_all()
        threads["bob"].join()
        assert threads["ann"].is_alive()
        assert waiters(bell) == 1
        over.add("ann")
        bell.notify_all()
        threads["ann"].join()
        assert not waiters(bell)

    def test_what_happens_between_the_question_and_the_sleep_is_not_missed(self) -> None:
        bell, answers = Condition(), iter([False, True])
        assert bell.wait(lambda: next(answers))
        assert not waiters(bell)

    def test_gives_up_in_time(self) -> None:
        bell = Condition()
        assert not bell.wait(lambda: False, timeout=0.01)
        assert not waiters(bell)

    def test_rings_that_are_put_off_are_heard_at_the_end(self) -> None:
        bell, over = Condition(), set[str]()
        asleep = threading.Thread(target=bell.wait, args=(lambda: "ann" in over,))
        asleep.start()
        until(lambda: waiters(bell) > 0)
        with bell.once():
            over.add("ann")
            bell.notify_all()
            assert waiters(bell), "it was woken before the end"
            in_thread(bell.notify_all)  # another thread's rings are its own
            asleep.join()
        bell.notify_all()
        assert not bell._muffled


def test_an_error_of_an_islands_own_thread_ends_the_wait_and_a_reset_starts_anew(controller, add, monkeypatch) -> None:
    def broken(run: Any) -> int:
        raise IndexError("a bug")

    monkeypatch.setattr(controller.driver._dispatchers[0].runner, "use_all_in_place", broken)
    y = add(v)
    with pytest.raises(RuntimeError, match=r"has stopped; pw\.reset\(\) starts it anew") as caught:
        y.result()
    assert str(caught.value.__cause__) == "a bug"
    pw.reset()
    np.testing.assert_array_equal(pw.jit(lambda x: x + 1, on=pw.virtual_slice(4))(v).result(), v + 1)
