"""Several kernels on one shared controller: shares, numbers, a kernel that ends, a host that dies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.controller.events_and_instructions import Free, Submitted
from pathways_nb.controller.turns import ContendedTurns
from pathways_nb.errors import CancelledError, LostError, NodeError, PathwaysError
from pathways_nb.runtime.cluster import messenger
from pathways_nb.session import status
from pathways_nb.session.diagnosis import log_of
from tests.support.closeness import close
from tests.support.kernels_in_process import Lab, acting
from tests.support.waiting import held_back, until, until_freed

X = np.arange(8, dtype=np.float32)


@pytest.fixture
def lab(watchdog: None) -> Iterator[Lab]:
    """Two islands of one host with two devices; nothing is left when all kernels have let go."""
    made = Lab(2, 2)
    yield made
    made.end()


def model() -> tuple[pw.Program, pw.Computation]:
    left, right = pw.virtual_slice(2, island=0, name="left"), pw.virtual_slice(2, island=1, name="right")
    a = pw.jit(lambda v: v * 2, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    b = pw.jit(lambda v: v + 1, on=right, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    b.name = "add"
    return pw.program(lambda v: b(a(v)), name="both"), b


def test_two_kernels_run_the_same_programs(lab) -> None:
    both, add = model()
    first, second = lab.kernel(), lab.kernel()
    results: dict[str, list[Any]] = {}
    for name, kernel in {"first": first, "second": second}.items():
        with acting(kernel):
            values = [both(X + at) for at in range(5)]
            results[name] = [*values, add(values[0]), pw.put(X, on=pw.virtual_slice(2, island=1))]
    for values in results.values():
        for at, value in enumerate(values[:5]):
            close(value, (X + at) * 2 + 1)
        close(values[5], X * 2 + 2)
        close(values[6], X)
    assert {"kernel 1", "kernel 2"} <= lab.shared.machine.clients.keys()
    results.clear()
    del values, value
    until_freed(lab.is_empty)


def test_what_the_controller_says_to_a_kernel_that_has_closed_is_not_carried_out(lab, monkeypatch) -> None:
    """The stream of a kernel holds that a value is free while the kernel closes, which forgets all values."""
    kernel = lab.kernel()
    link, closed, told = kernel.driver.link, threading.Event(), threading.Event()
    receive, raised = link.receive, list[Any]()

    def late() -> list[Any]:
        items = receive()
        if any(isinstance(item, Free) for item in items):
            told.set()
            assert closed.wait(60)
        return items

    monkeypatch.setattr(threading, "excepthook", raised.append)
    monkeypatch.setattr(link, "receive", late)
    with acting(kernel):
        value = pw.put(X, on=pw.virtual_slice(2, island=0))
    del value
    until(told.is_set)
    stream = kernel.driver._stream
    kernel.close()
    closed.set()
    stream.join()
    assert not raised


def test_a_training_state_stays_on_its_hosts(lab) -> None:
    place = pw.virtual_slice(2, island=0)
    step = pw.program(
        pw.jit(lambda w, x: w - 0.1 * (w - x), on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x")),
        donate_argnums=0,
    )
    kernel = lab.kernel()
    with acting(kernel):
        state, expected = pw.put(np.zeros(8, "f4"), on=place, shardings=pw.P("x")), np.zeros(8, "f4")
        for _ in range(10):
            state, expected = step(state, X), expected - np.float32(0.1) * (expected - X)
        close(state, expected)


def test_a_policy_chooses_between_the_clients_of_all_kernels(watchdog) -> None:
    seen: list[set[str]] = []

    def watching(ready: Any, state: Any) -> Any:
        seen.append({gang.client for gang in ready})
        return max(ready, key=lambda gang: (gang.client, -gang.serial))

    lab = Lab(1, 2, watching)
    try:
        place = pw.virtual_slice(2)
        work = pw.work(0.02, on=place)  # long beside what is enqueued ahead of the devices
        first, second = lab.kernel(), lab.kernel()
        for kernel in (first, second):
            with acting(kernel):
                work(X).wait()
        values = []
        with held_back(lab.cluster.links[0, 0].host.dispatcher):
            for kernel, name in ((first, "ann"), (second, "bob"), (first, "ann")):
                with acting(kernel):
                    tenant = pw.client(name, share=2)
                    with tenant.acting():
                        values += [work(X) for _ in range(8)]
            assert lab.shared.machine.clients["bob"].share == 2
        for value in values:
            close(value, X)
        assert {"ann", "bob"} in seen
    finally:
        lab.end()


def test_equal_names_of_clients_are_told_apart(lab) -> None:
    both, _ = model()
    for kernel in (lab.kernel(), lab.kernel()):
        with acting(kernel), pw.client("ann").acting():
            close(both(X), X * 2 + 1)
    assert {"ann", "ann of kernel 2"} <= lab.shared.machine.clients.keys()
    with acting(lab.kernels[1]):
        assert "client ann of kernel 2: share 1" in lab.kernels[1].status()


def test_a_kernel_that_ends_takes_only_its_own_with_it(lab) -> None:
    both, add = model()
    first, second = lab.kernel(), lab.kernel()
    with acting(first):
        kept = both(X)
        kept.wait()
    with acting(second):
        lost = [both(X) for _ in range(3)]
        close(lost[0], X * 2 + 1)
        with held_back(lab.cluster.links[0, 0].host.dispatcher):
            lost += [both(X) for _ in range(5)]
            lab.shared.leave(second.driver.link.kernel)  # as its lifeline's end does
    until(lambda: "kernel 2" not in lab.shared.machine.clients)
    with acting(first):
        close(kept, X * 2 + 1)
        close(add(kept), X * 2 + 2)
        del kept
    until_freed(lab.is_empty)
    with acting(second), pytest.raises((RuntimeError, PathwaysError)):
        both(X).result()


def test_a_host_dies_for_all_kernels(lab) -> None:
    both, add = model()
    kernels = [lab.kernel(), lab.kernel()]
    values = []
    link = lab.cluster.links[1, 0]
    with held_back(link.host.dispatcher):
        for kernel in kernels:
            with acting(kernel):
                values.append([both(X), add(X)])
        link.dead.set()
        for made in values:
            for value in made:
                with pytest.raises(
                    NodeError, match=r"add of \w+, run \d+, failed on right .*island 1 lost host host-1-0"
                ):
                    value.result()
    link.kill()
    for kernel in kernels:
        with acting(kernel):
            close(both(X), X * 2 + 1)
    assert lab.cluster.rebuilds == 1


def test_all_kernels_are_told_what_does_not_go_on(lab, monkeypatch) -> None:
    monkeypatch.setattr(status, "_LONG", 0.0)
    both, _ = model()
    kernels, told = [lab.kernel(), lab.kernel()], list[Any]()
    for kernel in kernels:
        kernel.driver.on_standstill = partial(told.append, kernel)
        with acting(kernel):
            close(both(X), X * 2 + 1)
    lab.shared.silent(1, {0: 4.0})
    until(lambda: all("host 0 has not answered for 4 s" in kernel.status() for kernel in kernels))
    lab.shared.silent(1, {})
    until(lambda: not any("not answered" in kernel.status() for kernel in kernels))
    # A kernel has the values of its call before it hears that the run has ended, and until then reports it.
    until(lambda: not any("both: " in kernel.status() for kernel in kernels))
    with held_back(lab.cluster.links[0, 0].host.dispatcher), acting(kernels[0]):
        value = both(X)
        until(lambda: "    both: running for " in kernels[0].status())
        assert "both: " not in kernels[1].status()
        lab.shared.stands_still()
        until(lambda: bool(told))
    close(value, X * 2 + 1)
    assert told == [kernels[0]], "the other has nothing under way"


def test_a_kernel_removes_an_island_that_computes_for_long_and_brings_it_back(lab, monkeypatch) -> None:
    monkeypatch.setattr(messenger, "_DRAIN", 0.05)
    both, add = model()
    first, second = lab.kernel(), lab.kernel()
    for kernel in (first, second):
        with acting(kernel):
            close(both(X), X * 2 + 1)
    lab.cluster.links[0, 0].change = lambda messages: []
    with acting(second):
        waiting = both(X)
        until(lambda: bool(lab.shared.messenger._out))
    with acting(first):
        first.remove(island=0)
    with acting(second), pytest.raises(NodeError, match="still computed when its devices were removed"):
        waiting.result()
    until(lambda: not lab.shared.messenger.rebuilding)
    for kernel in (first, second):
        assert "lost: island 0, dev 0–1" in kernel.status()
        with acting(kernel):
            close(add(X), X + 1)
    with acting(second):
        second.add(island=0)
    until(lambda: not first.resources.lost)
    for kernel in (first, second):
        with acting(kernel):
            close(both(X), X * 2 + 1)
    assert lab.cluster.rebuilds == 1


def test_shares_of_all_kernels_are_told(lab) -> None:
    kernel = lab.kernel()
    lab.shared.machine.turns.update(ann=ContendedTurns(1.0, 10, 0, 1.0), bob=ContendedTurns(3.0, 10, 9, 1.0))
    assert "while they competed ann 50% (asked 25%), bob 50% (asked 75%); bob had no other call" in kernel.status()
    assert "before you wait for one. If you do, processes and not devices are the limit: make s" in kernel.status()


def test_devices_come_and_go_for_all_kernels(lab) -> None:
    both, _ = model()
    first, second = lab.kernel(), lab.kernel()
    anywhere = pw.virtual_slice(2, name="anywhere")
    work = pw.jit(lambda v: v + 1, on=anywhere)
    for kernel in (first, second):
        with acting(kernel):
            close(both(X), X * 2 + 1)
    with acting(first):
        assert first.add(2) == 2
    until(lambda: len(second.islands) == 3)
    third = pw.jit(lambda v: v * 3, on=pw.virtual_slice(2, island=2))
    for kernel in (first, second):
        with acting(kernel):
            close(third(X), X * 3)
    with acting(second):
        second.remove(0)
    until(lambda: bool(first.resources.lost))
    with acting(first):
        value = work(X)
        close(value, X + 1)
        first.add(island=0)
    until(lambda: not second.resources.lost)
    for kernel in (first, second, lab.kernel()):
        with acting(kernel):
            close(both(X), X * 2 + 1)


def test_runs_have_the_numbers_of_their_kernel(lab) -> None:
    both, add = model()
    kernels = [lab.kernel(), lab.kernel()]
    for kernel in kernels:
        with acting(kernel):
            with pw.inject_fault("add", times=1):
                value = both(X)
                with pytest.raises(NodeError, match="add of both, run 0, failed on right"):
                    value.result()
            close(add(X), X + 1)


def test_the_log_of_all_kernels_is_in_the_file_of_any_and_is_played_again(lab) -> None:
    both, add = model()
    kernels = [lab.kernel(), lab.kernel()]
    for kernel in kernels:
        with acting(kernel):
            close(add(both(X)), X * 2 + 2)
    with acting(kernels[0]):
        log = log_of(pw.doctor())
    found = [event.client for event in (entry.event for entry, _, _ in log.replay()) if isinstance(event, Submitted)]
    assert set(found) == {"kernel 1", "kernel 2"}


def test_a_cancel_is_its_kernels_own(lab) -> None:
    both, _ = model()
    first, second = lab.kernel(), lab.kernel()
    host = lab.cluster.links[0, 0].host
    with held_back(host.dispatcher):
        with acting(first):
            mine = [both(X) for _ in range(3)]
        with acting(second):
            yours = both(X)
        first.cancel("")
        until(lambda: sum(run.stopped for run in list(host.runs.values())) == 3)
    for value in mine:
        with pytest.raises(CancelledError, match="was cancelled before it was dispatched"):
            value.result()
    with acting(second):
        close(yours, X * 2 + 1)


def test_memory_is_shared_by_kernels(watchdog) -> None:
    lab = Lab(1, 2, hbm=64)
    try:
        place = pw.virtual_slice(2)
        first, second = lab.kernel(), lab.kernel()
        with acting(first):
            held = pw.put(np.ones(16, "f4"), on=place)  # 64 bytes on each device
        done = threading.Event()
        got: list[Any] = []

        def put() -> None:
            with acting(second):
                got.append(pw.put(np.zeros(16, "f4"), on=place))
            done.set()

        waiting = threading.Thread(target=put)
        waiting.start()
        until(lambda: bool(lab.shared.machine.put_requests.waiting))
        assert not done.is_set()
        del held
        assert done.wait(60)
        waiting.join()
        close(got[0], np.zeros(16, "f4"))
    finally:
        lab.end()


def test_a_kernel_that_resets_joins_again(lab) -> None:
    both, _ = model()
    kernel = lab.kernel()
    with acting(kernel):
        old = both(X)
        old.wait()
        kernel.reset()
        close(both(X), X * 2 + 1)
        with pytest.raises(LostError):
            old.result()
    until(lambda: "kernel 1" not in lab.shared.machine.clients)


def test_a_kernel_that_joins_while_an_island_is_rebuilt_waits_for_it(lab) -> None:
    """It took the dead hosts for living ones, and its first call failed with the name of one."""
    both, _ = model()
    with acting(lab.kernel()):
        close(both(X), X * 2 + 1)
    lab.cluster.may_rebuild.clear()
    lab.cluster.links[0, 0].kill()
    until(lambda: bool(lab.shared.messenger.rebuilding))
    second = lab.kernel()
    assert [row["island"] for row in second.hosts()] == [1]
    found: list[Any] = []

    def call() -> None:
        with acting(second):
            found.append(both(X).result())

    calling = threading.Thread(target=call)
    calling.start()
    until(lambda: bool(second.driver.messenger.rebuilding))
    lab.cluster.may_rebuild.set()
    calling.join()
    close(found, [X * 2 + 1])
    assert [row["island"] for row in second.hosts()] == [0, 1]
