"""Room for a value on real and simulated devices: waited for, interrupted, given up."""

from __future__ import annotations

import gc
import itertools
import signal
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.controller.admission import MOST_PASSED, Admission
from pathways_nb.controller.requests import PutRequest
from pathways_nb.controller.state import CallState
from tests.conftest import settled
from tests.support.simulated import NO_HOSTS, X

KB, GB = 1 << 10, 1 << 30

block = np.ones((4, 4 * KB), np.float32)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set as soon as a value was found to lack room."""
    found, block = threading.Event(), Admission.block

    def told(self: Admission, request: Any, *rest: Any) -> None:
        block(self, request, *rest)
        if isinstance(request, PutRequest):
            found.set()

    monkeypatch.setattr(Admission, "block", told)
    return found


def put(place: pw.VirtualSlice, times: int = 1) -> pw.Future:
    future: pw.Future = pw.put(np.tile(block, (times, 1)), on=place, shardings=pw.P("x"))
    return future


@pytest.fixture
def small(watchdog: None) -> Iterator[pw.Controller]:
    """Four devices of 64 KiB; at the end nothing is held."""
    with pw.attach("cpu", islands=1, devices_per_island=4, hbm=64 * KB) as controller:
        yield controller
        if controller.closed:
            return
        gc.collect()
        settled(controller)
        driver = controller.driver
        assert not any((driver.entries, driver._requested_puts))
        assert not any((controller.machine.store.buffers, controller.machine.put_requests.waiting))


def test_a_value_beside_a_stream_of_programs_gets_its_room(
    small: pw.Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs all memory, which is never free while others may begin; counted in programs that began meanwhile."""
    place = pw.virtual_slice(4)
    double = pw.program(pw.jit(lambda x: x * 2, on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x")))
    double(block).wait()
    begun, admit = itertools.count(), Admission.admit
    passed: list[int] = []
    streaming, stop = threading.Semaphore(0), threading.Event()

    def counted(self: Admission, request: Any) -> None:
        if isinstance(request, CallState) and small.machine.put_requests.waiting:
            passed.append(next(begun))
        admit(self, request)

    def work(name: str) -> None:
        with pw.client(name):
            while not stop.is_set():
                double(block).wait()
                streaming.release()

    monkeypatch.setattr(Admission, "admit", counted)
    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            for _ in range(20):
                streaming.acquire()
            passed.clear()
            value = put(place, 4)
            assert len(passed) <= MOST_PASSED + len(threads)
            del value
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_an_interrupted_value_leaves_nothing(small: pw.Controller, waits: threading.Event) -> None:
    place = pw.virtual_slice(4)
    ann = pw.client("ann")
    with ann.acting():
        held = put(place, 3)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        waits.wait()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            put(place, 2)
    finally:
        signal.signal(signal.SIGINT, before)
        thread.join()
    settled(small)
    assert len(small.driver.entries) == 1
    ann.close()
    assert put(place, 4).result().sum() == 4 * block.sum()
    del held


@pytest.mark.parametrize(
    ("closes", "kind", "text"),
    [
        ("client", pw.LostError, "belonged to the client 'bob', which has closed while this waited"),
        ("controller", pw.CancelledError, "waited for memory when its controller was closed"),
    ],
)
def test_a_value_that_waits_when_all_is_closed_is_given_up(
    small: pw.Controller, waits: threading.Event, closes: str, kind: type[Exception], text: str
) -> None:
    place = pw.virtual_slice(4)
    ann, bob = pw.client("ann"), pw.client("bob")
    with ann.acting():
        held = put(place, 3)
    raised: list[BaseException] = []

    def work() -> None:
        try:
            with bob.acting():
                put(place, 2)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    waits.wait()
    if closes == "client":
        bob.close()
    else:
        small.close()
    thread.join()
    (error,) = raised
    assert isinstance(error, kind), error
    assert text in str(error)
    ann.close()
    del held


# ---- simulated devices


def test_in_virtual_time_a_value_waits_for_its_room_until_a_program_ends() -> None:
    found = []
    for _ in range(3):
        with pw.attach("sim", chip=NO_HOSTS, islands=1, devices_per_island=4, hbm=2 * GB) as controller:
            place = pw.virtual_slice(4)
            double = pw.program(pw.jit(lambda x: x * 2, on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x")))
            shape = jax.ShapeDtypeStruct((4, GB // 4), np.float32)  # half the memory; the result is the other half
            with pw.record() as run:
                double(shape)
                value = pw.put(X, on=place, shardings=pw.P("x"))
            (stall,) = [
                row for row in run.events.of_kind("stall") if row["name"].startswith("back-pressure: memory for")
            ]
            ends = max(row["end"] for row in run.events.of_kind("compute"))
            assert stall["end"] == ends
            found.append((stall["start"], stall["end"], controller.clock()))
            del value
    assert len(set(found)) == 1
    assert found[0][0] < found[0][1]
