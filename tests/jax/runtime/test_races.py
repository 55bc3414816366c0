"""What one thread does between two steps of another: interleavings that the soak found, made by hand."""

from __future__ import annotations

import re
import sys
import threading
from typing import Any

import jax
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.controller.events_and_instructions import Closed, Opened, Wake, Woke
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.lowering.transfers import shards_of
from pathways_nb.runtime.sim import held_up
from tests.conftest import settled
from tests.support.computations import on
from tests.support.waiting import LIMIT, Unseen, dispatchers, until, until_freed

v = np.arange(8, dtype=np.float32)


@pytest.fixture
def double(left: pw.VirtualSlice) -> pw.Program:
    """Compiled, so that calling it only submits."""
    double = pw.program(on(left, lambda x: x * 2), name="double")
    double(v).wait()
    return double


def test_a_taker_that_is_given_up_does_not_keep_the_reader_before_it_waiting(controller, left) -> None:
    """It is passed over at once, though the argument it would take over is still to be read."""
    read = pw.program(on(left, lambda x: x * 3), name="read")
    step = pw.program(on(left, lambda x: x + 1, donate_argnums=0), name="step", donate_argnums=0)
    read(v).wait()
    step(pw.put(v, on=left, shardings=pw.P("x"))).wait()
    gone, is_there = dispatchers(controller)[0], threading.Event()
    ann, x = pw.client("ann"), pw.put(v, on=left, shardings=pw.P("x"))
    portion = gone._launch_range
    gone._launch_range = lambda *order: (is_there.wait(LIMIT), portion(*order))  # it has much else to do
    seen = read(x)
    with ann.acting():
        taken = step(x)
    ann.cancel()
    is_there.set()
    np.testing.assert_array_equal(seen.result(), v * 3)
    with pytest.raises(pw.CancelledError):
        taken.result()


def test_a_client_that_closes_while_another_is_calling_with_its_result(controller, double, monkeypatch) -> None:
    ann = pw.client("ann")
    with ann.acting():
        hers = double(v)
    hers.wait()
    settled(controller)
    driver, post = controller.driver, controller.driver.event_loop.submit

    def close_first(event: Any, *changes: Any) -> None:
        ann.close()
        post(event, *changes)

    with monkeypatch.context() as patched:
        patched.setattr(driver.event_loop, "submit", close_first)
        his = double(hers)
    with pytest.raises(pw.LostError, match="belonged to the client 'ann', which has closed"):
        his.result()
    np.testing.assert_array_equal(double(v).result(), v * 2)


def test_a_client_that_closes_before_the_call_has_found_its_result(controller, left) -> None:
    add = pw.program(on(left, lambda x, y: x + y), name="add")
    add(v, v).wait()
    ann = pw.client("ann")
    with ann.acting():
        hers = add(v, v)
    hers.wait()
    settled(controller)  # or the run that made it still holds it

    class Late:
        """An array that is read after ``hers`` was looked up."""

        shape, dtype, nbytes = v.shape, v.dtype, v.nbytes

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
            ann.close()
            return v

    with pytest.raises(pw.LostError, match="belonged to a client that another thread has closed"):
        add(hers, Late()).result()
    np.testing.assert_array_equal(add(v, v).result(), v + v)
    settled(controller)
    del hers
    settled(controller)
    assert not controller.driver.entries
    assert not controller.machine.store.buffers


def test_what_is_read_and_dropped_at_once_is_not_freed_before_it_is_read(controller, left, double, monkeypatch) -> None:
    """A handle that another thread drops while a call is posted must not carry the call's own in front of it."""
    x, other = pw.put(v, on=left, shardings=pw.P("x")), pw.put(v, on=left)
    settled(controller)
    driver, inbox = controller.driver, controller.driver.event_loop.inbox
    dropped = [other]
    del other

    class Busy:
        """Another thread drops a handle just before a call is in."""

        def put(self, item: Any) -> None:
            dropped.clear()
            inbox.put(item)

        def __getattr__(self, name: str) -> Any:
            return getattr(inbox, name)

    with driver.event_loop.deciding:  # the engine is busy meanwhile
        inbox.put(Closed("nobody"))
        with monkeypatch.context() as patched:
            patched.setattr(driver.event_loop, "inbox", Busy())
            y = double(x)
        del x
    np.testing.assert_array_equal(y.result(), v * 2)
    del y
    settled(controller)
    assert not controller.machine.store.buffers


def test_a_client_of_several_threads_closes_as_one(controller, double) -> None:
    """Whoever leaves last may be another tenant of that name than the one that called."""
    one, other = pw.client("ann", share=3), pw.client("ann", share=3)
    with other:
        with one:
            kept = double(v)
        assert "ann" in controller.machine.clients
    assert "ann" not in controller.machine.clients
    with pytest.raises(pw.LostError, match="belonged to the client 'ann', which has closed"):
        kept.result()
    with one.acting():
        double(v).wait()
        other.close()
        double(v).wait()
    assert controller.machine.clients["ann"].share == 3
    one.close()


def test_memory_given_up_is_free_even_if_who_takes_it_fails(controller, left) -> None:
    takes = pw.program(on(left, lambda x: x + 1), name="takes", donate_argnums=0)
    takes(pw.put(v, on=left, shardings=pw.P("x"))).wait()
    settled(controller)
    client = controller.driver.attachment.islands[0].devices[0].client
    given = pw.put(v, on=left, shardings=pw.P("x"))
    with pw.inject_fault(program="takes"), pytest.raises(pw.NodeError, match="injected fault"):
        takes(given).result()
    settled(controller)
    until_freed(lambda: not any(array.shape == given.shape for array in client.live_arrays()))
    with pytest.raises(pw.LostError, match="was donated at"):
        given.result()


def test_a_client_that_closes_before_a_call_has_returned(controller, double, monkeypatch) -> None:
    """Another thread closes it, and all is gone when the futures are made."""
    ann, driver = pw.client("ann"), controller.driver
    submit, make_room = driver.submit, driver._wait_for_memory

    def gone(result: Any) -> Any:
        ann.close()
        settled(controller)
        return result

    with monkeypatch.context() as patched, ann.acting():
        patched.setattr(driver, "submit", lambda *args: gone(submit(*args)))
        hers = double(v)
    with monkeypatch.context() as patched, ann.acting():
        patched.setattr(driver, "_wait_for_memory", lambda *args: gone(make_room(*args)))
        placed = pw.put(v, on=pw.virtual_slice(4))
    for future in (hers, placed):
        with pytest.raises(pw.LostError, match="belonged to a client that another thread has closed"):
            future.result()
    del hers, placed
    settled(controller)
    assert not controller.driver.entries
    assert not controller.machine.store.buffers


def test_what_lost_devices_were_to_read_may_be_taken_over_afterwards(controller, left, right) -> None:
    """A reader that fails before it reads must not keep who takes the memory over waiting for ever."""
    reads = pw.program(on(left, lambda x: x + 1), name="reads")
    takes = pw.program(on(right, lambda x: x * 2), name="takes", donate_argnums=0)
    x = pw.put(v, on=right, shardings=pw.P("x"))
    reads(x).wait()
    dispatchers(controller)[0].runner.lost_devices = {1}  # what a remove does, without the new epoch
    with pytest.raises(pw.NodeError, match="device 1 of island 0 was lost"):
        reads(x).result()
    dispatchers(controller)[0].runner.lost_devices = set()
    np.testing.assert_array_equal(takes(x).result(), v * 2)


def test_the_engine_hears_of_a_time_to_wake_that_a_users_thread_was_told(controller, double, monkeypatch) -> None:
    """It sleeps without a limit while nothing is posted."""
    settled(controller)
    driver, handle = controller.driver, controller.machine.handle
    woken = threading.Event()

    def told(event: Any, now: float) -> list[Any]:
        if isinstance(event, Woke):
            woken.set()
        return [*handle(event, now), *([Wake(now + 0.05)] if isinstance(event, Opened) else [])]

    monkeypatch.setattr(controller.machine, "handle", told)
    with pw.client("ann").acting():
        driver.open("ann", 1.0, 0.0, 0)
        assert woken.wait(LIMIT)
    pw.client("ann").close()


def test_devices_that_change_while_a_program_is_lowered_do_not_leave_it_there(controller, left, monkeypatch) -> None:
    program, lower = pw.program(on(left, lambda x: x + 1), name="p"), controller.driver.lower

    def change(*asked: Any) -> Any:
        lowered = lower(*asked)
        controller.begin_epoch()  # what a remove in another thread does
        return lowered

    with monkeypatch.context() as patched:
        patched.setattr(controller.driver, "lower", change)
        program(v).wait()
    seen: list[Any] = []
    monkeypatch.setattr(controller.driver, "lower", lambda *asked: seen.append(asked) or lower(*asked))
    program(v).wait()
    assert len(seen) == 1, "it was lowered for devices as they were before"


def test_the_first_calls_of_several_threads_start_one_engine(controller, monkeypatch) -> None:
    started, start, asked = [], controller._start_driver, threading.Barrier(4)

    def slowly(controller: Any) -> Any:
        started.append(1)
        return start(controller)

    def ask() -> None:
        asked.wait()
        assert controller.driver

    monkeypatch.setattr(controller, "_start_driver", slowly)
    assert controller.driver_or_none is None
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert started == [1]


def test_a_clients_last_program_ends_while_it_calls_the_next(controller, double) -> None:
    """The row of its programs must not be thrown away between finding it and adding to it."""

    class Rows(dict[str, Any]):
        """The end of the first program is seen when its row has been found."""

        def setdefault(self, client: str, default: Any = None) -> Any:
            found = super().setdefault(client, default)
            unseen.see()
            until(lambda: 0 not in driver.runs)
            return found

    pw.reset()
    driver = controller.driver
    with Unseen(controller) as unseen:
        first = double(v)
        driver._queued = Rows(driver._queued)
        second = double(v)
    for future in (first, second):
        np.testing.assert_array_equal(future.result(), v * 2)


def test_slices_come_and_go_in_many_threads(controller) -> None:
    def work() -> None:
        for size in (1, 2, 3, 4) * 10:
            pw.put(v[:1], on=pw.virtual_slice(size)).wait()

    def end(place: pw.VirtualSlice) -> int:
        serial = place.serial
        pw.put(v[:1], on=place).wait()
        return serial

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = pw.virtual_slice(4)
    serial = end(last)
    assert serial in controller.resources.placements
    del last
    until_freed(lambda: controller.resources.placements == {})
    assert [load.total for load in controller.resources._load] == [0, 0]


def test_threads_that_list_the_shards_of_one_array_all_find_all(controller) -> None:
    """Without a lock, one in ten of these arrays gave some thread a part of its shards."""
    mesh = controller.driver.attachment.islands[0].mesh(*placed(controller))
    sharding = jax.sharding.NamedSharding(mesh, pw.P("x"))
    make = jax.jit(lambda v: v + 1, out_shardings=sharding)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for start in range(60):
            array, ready, found = make(jax.device_put(np.arange(8.0) + start, sharding)), threading.Barrier(4), []

            def look(array: Any = array, ready: Any = ready, found: list[int] = found) -> None:
                ready.wait()
                found.append(len(shards_of(array)))

            threads = [threading.Thread(target=look) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == [mesh.size] * 4
    finally:
        sys.setswitchinterval(interval)


def test_a_fetch_shows_no_other_thread_a_part_of_an_arrays_shards(controller, left) -> None:
    """Without the lock, one in seven of these arrays did."""
    spec, interval = pw.P("x"), sys.getswitchinterval()
    add = pw.jit(lambda v: v + 1, on=left, in_shardings=spec, out_shardings=spec)
    sys.setswitchinterval(1e-6)
    try:
        for start in range(60):
            future = add(np.arange(8.0, dtype=np.float32) + start)
            array, ready, found = future.array(), threading.Barrier(2), []

            def look(array: Any = array, ready: Any = ready, found: list[int] = found) -> None:
                ready.wait()
                found.append(len(shards_of(array)))

            thread = threading.Thread(target=look)
            thread.start()
            ready.wait()
            future.result()
            thread.join()
            assert found == [left.size]
    finally:
        sys.setswitchinterval(interval)


def placed(controller: pw.Controller) -> tuple[Placement, pw.VirtualSlice]:
    place = pw.virtual_slice(2)
    return controller.place([place])[place.serial], place


def test_a_traced_body_that_waits_for_who_calls_the_same_program_is_named(
    left: pw.VirtualSlice, controller: pw.Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both waited for ever, without a word."""
    monkeypatch.setattr(held_up, "NAMED_AFTER", 0.05)
    computation, inside, called, said = on(left, lambda x: x * 2), threading.Event(), threading.Event(), list[str]()
    monkeypatch.setattr(controller, "say", said.append)

    def body(x: Any) -> Any:
        inside.set()
        called.wait()
        return computation(x)

    program = pw.program(body, name="program")

    def first() -> None:
        with pw.client("ann").acting():
            program(v).wait()

    def second() -> None:
        inside.wait()
        with pw.client("bob").acting():
            program(v).wait()

    threads = [threading.Thread(target=each, name=each.__name__, daemon=True) for each in (first, second)]
    for thread in threads:
        thread.start()
    until(lambda: len(said) == 1)
    assert re.fullmatch(
        r"thread 'second' waits for the trace of 'program', which thread 'first' \(at test_races\.py:\d+\) holds without "
        r"tracing\. If that waits for something that 'second' does later, neither goes on: a function that is traced must "
        r"wait for no other thread\. Let it wait before the call\.",
        said[0],
    )
    called.set()
    for thread in threads:
        thread.join()
    assert said[1:] == [""], "what was shown is over"
