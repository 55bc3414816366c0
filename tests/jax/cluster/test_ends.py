"""What ends, and how that is found: hosts that stand still, servers that are gone, processes that must not stay."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partialmethod
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

import pathways_nb as pw
from pathways_nb.errors import LostError, NodeError, UsageError
from pathways_nb.runtime.cluster import heartbeats, messenger, probe, ray_cluster, reaper
from pathways_nb.runtime.cluster.cluster_driver import ClusterDriver
from pathways_nb.runtime.cluster.gate import Gate
from pathways_nb.runtime.cluster.host_island import HostDied
from pathways_nb.runtime.cluster.host_watch import HostWatch
from pathways_nb.session import status
from pathways_nb.util import processes
from tests.support.closeness import close
from tests.support.hosts_in_process import Cluster, hosts_in_process
from tests.support.waiting import LIMIT, held_back, until

X = np.arange(8, dtype=np.float32)
LOST = "the Ray cluster is lost: its GCS at 127.0.0.1:1 is gone. Attach again: pw.attach('ray', …)."


@pytest.fixture
def cluster(watchdog: None) -> Iterator[Cluster]:
    with hosts_in_process(2, 2, 2) as made:
        yield made


def doubled(island: int) -> pw.Program:
    double = pw.jit(lambda v: v * 2, on=pw.virtual_slice(2, island=island, name=f"place {island}"))
    return pw.program(double)


# ---- hosts that stand still


def looked(cluster: Cluster, seconds: float) -> None:
    """Let the looks of some seconds pass; hosts that answer have done so before each."""
    watch = cluster.driver.messenger.watch
    for _ in range(int(seconds / heartbeats.EVERY)):
        asked = watch._heartbeats._asked
        living = [link for link in cluster.links.values() if link.answering.is_set()]
        until(lambda: all(asked[link].done() for link in living if link in asked))
        watch.look()


def test_a_host_that_does_not_answer_is_shown_and_then_replaced(cluster) -> None:
    """A stopped process was never noticed: it does not end."""
    program, controller = doubled(0), cluster.controller
    assert controller is not None
    close(program(X), X * 2)
    still = cluster.links[0, 0]
    still.answering.clear()
    still.change = lambda messages: []  # nor does it carry out what it is told
    waiting = program(X)
    looked(cluster, 20)
    assert re.search(r"island 0: 2 × cpu.*; host 0 has not answered for 18 s", controller.status())
    assert not cluster.driver.islands[0].lost
    events = controller.record.events()
    silences = events.select(events.is_("kind", "stall") & events.is_("name", "host 0 of island 0 does not answer"))
    assert float((silences["end"] - silences["start"]).sum()) == pytest.approx(18.0)
    assert set(silences["island"]) == {0}
    assert set(silences["devices"]) == {2}
    looked(cluster, 20)
    with pytest.raises(
        NodeError, match=r"place 0 .*LostError: island 0 lost host host-0-0, process \d+: it has not ans"
    ):
        waiting.result()
    until(lambda: not cluster.driver.messenger.rebuilding)
    assert cluster.links[0, 0] is not still
    close(program(X), X * 2)
    assert "not answered" not in controller.status()


def test_a_host_that_computes_for_long_is_not_taken_for_dead(cluster) -> None:
    """It answers beside what it does, however long that takes."""
    program, still = doubled(0), cluster.links[0, 0]
    close(program(X), X * 2)
    held = list[Any]()
    still.change = lambda messages: held.extend(messages) or []  # type: ignore[func-returns-value]
    waiting = program(X)
    looked(cluster, 4 * heartbeats.UNRESPONSIVE_AFTER)
    assert not cluster.driver.islands[0].lost
    still.change = lambda messages: [*held, *messages]
    close(program(X), X * 2)
    close(waiting, X * 2)


def test_an_island_that_computes_for_long_is_told_of_and_can_be_removed(cluster, monkeypatch) -> None:
    monkeypatch.setattr(status, "_LONG", 0.0)
    program, other, controller = doubled(0), doubled(1), cluster.controller
    assert controller is not None
    close(program(X), X * 2)
    close(other(X), X * 2)
    cluster.links[0, 0].change = lambda messages: []
    waiting = program(X)
    until(lambda: bool(cluster.driver.messenger._out))
    line = r"\n    double: running for [\d.]+ .?s; double on island 0, dev 0–1 has not ended"
    assert re.search(line, controller.status())
    monkeypatch.setattr(messenger, "_DRAIN", 0.05)
    controller.remove(island=0)
    with pytest.raises(NodeError, match="island 0 lost host host-0-0, .*still computed when its devices were removed"):
        waiting.result()
    close(other(X), X * 2)
    assert "running for" not in controller.status()
    until(lambda: not cluster.driver.messenger.rebuilding)
    assert "lost: island 0, dev 0–1" in controller.status(), "new hosts do not bring the devices back"
    controller.add(island=0)
    close(doubled(0)(X), X * 2)
    assert cluster.rebuilds == 1


def test_what_ends_soon_ends_before_its_island_is_removed(cluster, monkeypatch) -> None:
    monkeypatch.setattr(messenger, "_DRAIN", LIMIT)  # soon, however busy the machine is
    program, controller = doubled(0), cluster.controller
    assert controller is not None
    close(program(X), X * 2)
    with held_back(cluster.links[0, 0].host.dispatcher):
        waiting = program(X)
        until(lambda: bool(cluster.driver.messenger._out))
        controller.remove(island=0)
    # Its value is there, or lost with the devices, or the host heard of their loss before it began.
    with contextlib.suppress(LostError, NodeError):
        close(waiting, X * 2)
    controller.add(island=0)
    close(doubled(0)(X), X * 2)
    assert not cluster.rebuilds


def test_a_reset_ends_hosts_that_compute_for_ever(cluster, monkeypatch) -> None:
    program, busy, other = doubled(0), cluster.links[0, 0], cluster.links[1, 0]
    close(program(X), X * 2)
    busy.change = lambda messages: []
    waiting = program(X)
    until(lambda: bool(cluster.driver.messenger._out))
    monkeypatch.setattr(ClusterDriver, "close", partialmethod(ClusterDriver.close, 0.05))
    pw.reset()
    with pytest.raises(LostError):
        waiting.result()
    close(program(X), X * 2)
    assert busy.dead.is_set()
    assert cluster.links[1, 0] is other, "which computed nothing"


@pytest.mark.parametrize("seconds", [0, 1, -30, float("nan"), float("inf"), "30", True])
def test_seconds_of_silence_that_mean_nothing(seconds) -> None:
    with pytest.raises(UsageError, match=r"attach\(unresponsive_after=.*a number of seconds from 5 to 86400 is needed"):
        pw.attach("ray", unresponsive_after=seconds)


def test_silence_is_of_hosts_of_a_cluster() -> None:
    with pytest.raises(
        UsageError, match=r"attach\('cpu', unresponsive_after=20\): unresponsive_after is for a Ray clu"
    ):
        pw.attach("cpu", unresponsive_after=20)


def test_a_host_that_dies_while_others_wait_for_it_ends_their_start() -> None:
    """The first host's answer was waited for first, and it waited for the second, which was dead: 322 s were seen."""
    never, died = Future[Any](), Future[Any]()
    died.set_exception(HostDied("its process ended"))
    with pytest.raises(HostDied, match="its process ended"):
        heartbeats.together([never, died], [], 30.0)


def test_a_new_host_that_stands_still_ends_the_start() -> None:
    answers = [Future[None]() for _ in range(2)]
    answers[0].set_result(None)

    class Still:
        def ask(self, method: str) -> Future[None]:
            return answers.pop(0)

    link, looks = Still(), heartbeats.Heartbeats()
    for _ in range(1 + int(30 / heartbeats.EVERY)):
        looks.check_starting([link], 30.0)  # type: ignore[list-item]
    with pytest.raises(HostDied, match=r"host 0 of 1 has not answered for 30 s.* while it started"):
        looks.check_starting([link], 30.0)  # type: ignore[list-item]


def test_half_a_minute_without_a_report_is_told_once(cluster) -> None:
    program, watch = doubled(0), cluster.driver.messenger.watch
    close(program(X), X * 2)
    told, held = list[str](), list[Any]()
    cluster.driver.on_standstill = lambda: told.append("told")
    cluster.links[0, 0].change = lambda messages: held.extend(messages) or []  # type: ignore[func-returns-value]
    waiting = program(X)
    until(watch.waits)
    for _ in range(40):
        watch.look_for_progress()
    assert told == ["told"]
    assert cluster.controller is not None
    path = pw.doctor()
    text = path.read_text()
    path.unlink()
    for part in (
        "under way\nrun 1: double", "to end steps 0 to ", "island 0: 2 devices, 1 host: host-0-0", "pathways-event-loop",
        "compute double of double, run 0, ok",
    ):  # fmt: skip
        assert part in text
    cluster.links[0, 0].change = lambda messages: [*held, *messages]
    close(program(X), X * 2)
    close(waiting, X * 2)
    for _ in range(40):
        watch.look_for_progress()
    assert told == ["told"]


def test_the_doctor_writes_a_file_for_this_user_only(controller) -> None:
    path = pw.doctor()
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert "<controller cpu: 2 islands × 4 devices" in text
    assert "test_the_doctor_writes_a_file" in text, "the stack of this thread"
    path.unlink()


def test_only_the_last_files_of_the_doctor_are_kept(controller, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for _ in range(22):
        pw.doctor()
    assert len(list(tmp_path.iterdir())) == 20


# ---- who is named


def test_the_host_that_died_is_named_and_not_those_that_died_with_it() -> None:
    """JAX ends all hosts of an island when the first one dies, and the first to be heard of was named."""
    first, second = object(), object()
    watch = HostWatch([], 30.0, lambda *_: None, lambda *_: None, lambda: None)
    watch.dead.add(second)  # type: ignore[arg-type]
    told = threading.Timer(0.05, watch.dead.add, (first,))
    told.start()
    assert watch.culprit(second, [first]) is first  # type: ignore[arg-type, list-item, comparison-overlap]
    assert watch.culprit(first, [first]) is first  # type: ignore[arg-type, list-item, comparison-overlap]


# ---- servers


def test_a_server_that_is_gone_or_stands_still_is_told_from_one_that_answers(monkeypatch) -> None:
    monkeypatch.setattr(probe, "_SAYS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as still:  # the system connects, and nobody reads
        address = f"127.0.0.1:{still.getsockname()[1]}"
        assert not probe.asked(address)
        connection = threading.Thread(target=lambda: still.accept()[0].close())
        monkeypatch.setattr(probe, "_SAYS", 30.0)
        still.accept()[0].close()
        connection.start()
        assert probe.asked(address)
        connection.join()
    with pytest.raises(ConnectionError):
        probe.asked(address)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([None] * 3, "its GCS at a:1 is gone (refused)"),
        ([None, None, True, None, None, True], ""),
        ([False] * 10, "its GCS at a:1 has not answered for 30 s"),
        ([False] * 9 + [True] + [False] * 9, ""),
    ],
)
def test_how_often_a_server_must_not_answer(answers, said) -> None:
    left = list(answers)

    def ask(address: str) -> bool:
        found: bool | None = left.pop(0)
        if found is None:
            raise ConnectionError("refused")
        return found

    health = probe.Health({"GCS": "a:1"}, ask)
    found = ""
    while left and not found:
        found = health.look(30.0)
    assert (found, left) == (said, [])


def test_a_lost_cluster_fails_what_is_under_way_and_every_call(cluster) -> None:
    program, controller = doubled(0), cluster.controller
    assert controller is not None
    kept = program(X)
    close(kept, X * 2)
    for link in cluster.links.values():
        link.change = lambda messages: []  # nobody hears anything any more
    waiting = program(X)
    found: list[BaseException] = []

    def wait() -> None:
        try:
            waiting.result()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    cluster.driver.lose_cluster(LOST)
    thread.join()
    assert isinstance(found[0], LostError)
    assert str(found[0]) == LOST
    for call in (lambda: program(X), lambda: doubled(1)(X), kept.result):
        with pytest.raises(LostError, match="the Ray cluster is lost: its GCS"):
            call()
    assert "lost" in controller.status()
    for link in cluster.links.values():
        link.kill()
    assert cluster.rebuilds == 0
    controller.lost = lambda: LOST
    pw.reset()
    with pytest.raises(LostError, match="the Ray cluster is lost"):
        program(X)
    assert repr(controller).endswith(", lost>")


def test_nobody_calls_ray_when_the_gate_is_closed() -> None:
    gate, answer = Gate(), Future[Any]()
    reference = SimpleNamespace(future=lambda: answer)
    asked = gate.promise(lambda: reference, "host", lambda error: error)
    other = gate.promise(lambda: reference, "other host", lambda error: error)
    gate.give_up("other host", "it was ended")
    with pytest.raises(HostDied, match="it was ended"):
        other.result()
    assert not asked.done()
    with gate.passed():
        gate.close("gone")
        assert not gate.wait_until_empty(0.0)
    assert gate.wait_until_empty(0.0)
    for late in (asked, gate.promise(lambda: pytest.fail("Ray was called"), "host", lambda error: error)):
        with pytest.raises(HostDied, match="gone"):
            late.result()
    answer.set_result("too late")
    with pytest.raises(HostDied, match="gone"), gate.passed():
        pytest.fail("Ray was called")


# ---- what must not stay

_SLEEPS = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(1)"


def test_what_a_cluster_has_started_ends_with_it_also_if_it_stands_still(tmp_path) -> None:
    folder = tmp_path / "session"
    folder.mkdir()
    with reaper.marked() as made:
        started = subprocess.Popen([sys.executable, "-S", "-c", _SLEEPS], start_new_session=True)
    made.removes(str(folder))
    os.kill(started.pid, signal.SIGSTOP)
    made.end()
    assert started.wait() == -signal.SIGKILL
    assert not folder.exists()


def test_what_a_cluster_has_started_ends_with_a_kernel_that_is_killed(tmp_path) -> None:
    """Agents, workers and a host of 316 MB outlived the kernel by minutes, and its folder for ever."""
    folder = tmp_path / "session"
    folder.mkdir()
    kernel = f"""
import importlib.util, subprocess, sys, time
spec = importlib.util.spec_from_file_location("reaper", {reaper.__file__!r})
reaper = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reaper)
with reaper.marked() as made:
    started = subprocess.Popen([sys.executable, "-S", "-c", {_SLEEPS!r}], start_new_session=True)
made.removes({str(folder)!r})
print(started.pid, flush=True)
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-S", "-c", kernel], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        process.kill()
    until(lambda: not psutil.pid_exists(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE)
    until(lambda: not folder.exists())


@pytest.mark.parametrize("read", [lambda number: reaper._state(number)[2], processes._began])
def test_a_process_may_have_a_name_that_was_cut_within_a_letter(tmp_path, read) -> None:
    named = tmp_path / ("é" * 8)  # the system keeps 15 bytes of it
    named.symlink_to("/bin/sleep")
    with subprocess.Popen([named, "60"]) as sleeping:
        try:
            assert read(sleeping.pid).isdecimal()
        finally:
            sleeping.kill()


def test_an_unexpected_error_of_ray_leaves_no_question_open() -> None:
    def call() -> Any:
        raise RuntimeError("ray was shut down")

    door = Gate()
    with pytest.raises(RuntimeError, match="shut down"):
        door.promise(call, "host", lambda error: error)
    assert not door._asked


def test_two_servers_that_are_silent_are_gone_as_soon_as_one() -> None:
    both = probe.Health({"GCS": "a", "raylet": "b"}, lambda address: False)
    looks = [both.look(30.0) for _ in range(6)]  # of five seconds each
    assert looks[:5] == [""] * 5
    assert looks[5] == "its GCS at a has not answered for 30 s"


def test_one_controllers_error_keeps_nobody_from_leaving_a_lost_cluster() -> None:
    told: list[str] = []

    def fails(why: str) -> None:
        raise OSError("the disk is full")

    connection = ray_cluster.Connection(None, "10.0.0.1:6379", own=False)
    connection.on_lost = {1: fails, 2: told.append}
    connection.lose("its GCS is gone")
    assert told == [connection.lost] == [connection.gate.closed]
    assert connection.ended.is_set()


def test_no_other_process_is_ended_that_got_the_same_number() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", _SLEEPS]) as other:
        us = processes.this_process()
        began = processes._began(other.pid)
        assert not processes.end(us._replace(number=other.pid, began="1"))
        assert not processes.end(us._replace(number=other.pid, began=began, space="another machine"))
        assert other.poll() is None
        assert processes.end(us._replace(number=other.pid, began=began))
        assert other.wait() == -signal.SIGKILL
