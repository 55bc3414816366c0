"""What records say of why events began: true to their stamps, on every driver, and kept wherever a record goes."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.results.chrome_trace import from_chrome
from pathways_nb.runtime.launch_causes import brought_by, enqueue_label
from pathways_nb.runtime.local.launch_watcher import IN_FLIGHT
from pathways_nb.timing.waits import CALL, MEMORY, MESSAGE, TURN, WHY, WINDOW
from pathways_nb.trace.causality.critical_path import critical_path
from pathways_nb.trace.causality.happened_before import Dag
from pathways_nb.trace.record import UNKNOWN, Events, Record
from tests.support.hosts_in_process import hosts_in_process
from tests.support.waiting import LIMIT, Unseen, dispatchers

X = np.ones((1024, 1024), np.float32)


def two_tenants() -> pw.Run:
    """Two tenants whose programs cross islands, more of them than go out at once, and then one after another."""
    here, there = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
    a, b, f = pw.work(1e-3, on=here, name="a"), pw.work(1e-3, on=there, name="b"), pw.jit(lambda x: x * 2, on=there)
    ann, bob = pw.program(lambda x: f(a(b(a(x))))), pw.program(lambda x: b(a(f(b(x)))))
    pw.wait((ann(X), bob(X)))
    with pw.record() as run, pw.client("ann") as one, pw.client("bob") as other:
        for _ in range(6):
            with one.acting():
                last = ann(X)
            with other.acting():
                bob(X)
        with one.acting():
            last.wait()
            for _ in range(3):
                ann(X).wait()
    return run


def untold(events: Events) -> Events:
    """The events as a record without causes has them."""
    stored = {name: events.stored(name) for name in ("label", "start", "end", "run", "quality", "status")}
    return Events(events.labels, stored | {n: np.full(len(events), one) for n, one in UNKNOWN.items()}, events["id"])


def reasons(events: Events) -> Counter[str]:
    return Counter(word for word in events["why"].tolist() if word)


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "fifo"},
        {"policy": "stride"},
        {"dispatch": "sequential"},
        {"dcn_latency": 1e-3},
        {"hbm": 40e6},
    ],
    ids=str,
)
def test_in_simulated_time_an_event_begins_when_what_is_told_lets_it(options) -> None:
    with pw.attach("sim", chip="tpu_v3", islands=2, devices_per_island=2, **options):
        run = two_tenants()
    graph = Dag.of(run.events)
    timed, made, why = graph.timed, graph.on_devices | graph.events.is_("kind", "enqueue"), graph.events.stored("why")
    assert (why[made] >= 0).all()
    told = np.flatnonzero((why >= 0) & (why != CALL))
    assert (timed.waits.why[timed.edge[told]] == why[told]).all(), "there is an edge for each reason"
    assert np.abs((timed.start - timed.released)[told]).max() < 1e-9
    assert {TURN, MESSAGE} <= set(why[told].tolist())
    assert ("memory" in reasons(run.events)) == ("hbm" in options)


def test_on_real_devices_nothing_is_released_by_what_had_not_ended(monkeypatch) -> None:
    with pw.attach("cpu", islands=2, devices_per_island=2) as controller:
        place = pw.virtual_slice(2, island=0)
        wait = pw.work(1e-3, on=place)
        many = pw.program(lambda x: [x := wait(x) for _ in range(2 * IN_FLIGHT)][-1])
        many(np.float32(1)).wait()
        watcher, is_full = dispatchers(controller)[0].computing, threading.Event()
        waits = watcher.wait_for_room
        monkeypatch.setattr(watcher, "wait_for_room", lambda: (is_full.set(), waits()))
        with pw.record() as full:
            unseen = Unseen(controller)
            last = many(np.float32(1))
            assert is_full.wait(LIMIT)
            unseen.see()
            last.wait()
        run = two_tenants()
    for events in (full.events, run.events):
        order = np.lexsort((events["id"], events["start"]))
        events = events.select(order)
        by = events.releasers
        at = np.flatnonzero((by >= 0) & events.is_("why", *(WHY[why] for why in (TURN, MEMORY, WINDOW))))
        assert (events["end"][by[at]] <= events["start"][at]).all()
        launched = events.is_("kind", "compute", "collective", "transfer", "enqueue")
        assert (events.stored("why")[launched] >= 0).all()
    assert reasons(full.events)["window"]
    assert reasons(run.events)["turn"]


def test_what_an_island_waited_for_is_the_dispatching_on_another_one() -> None:
    with pw.attach("cpu", islands=2, devices_per_island=1):
        here, there = pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)
        slow = pw.program(lambda x: [x := step(x) for _ in range(2 * IN_FLIGHT)][-1])
        step, last = pw.work(1e-2, on=here), pw.jit(lambda x: x * 2, on=there)
        across = pw.program(lambda x: last(step(x)))
        pw.wait((slow(X), across(X)))
        with pw.record() as run:
            pw.wait(
                (slow(X), across(X))
            )  # the second waits on its own island for what the window holds up on the other
    events = run.events
    by = events.releasers
    at = np.flatnonzero((by >= 0) & events.is_("why", "message") & events.is_("kind", "enqueue"))
    assert len(at)
    assert (events["island"][by[at]] != events["island"][at]).all()
    assert (events["run"][by[at]] == events["run"][at]).all()


class _OneMove:
    """As much of a call as is asked: step 1 moves to island 1 what step 0 made on island 0, for step 2."""

    def __init__(self, moved: Any) -> None:
        kinds = ("launch", 0, ()), ("move", 1, (0,)), ("launch", 1, (1,))
        steps = [
            SimpleNamespace(kind=kind, place=place, producers=makers, outputs=(number,), argument=-1)
            for number, (kind, place, makers) in enumerate(kinds)
        ]
        places = {island: SimpleNamespace(island=island) for island in (0, 1)}
        self.compiled_plan = SimpleNamespace(plan=SimpleNamespace(steps=steps, placements=places), name="p")
        self.late, self.slots, self.client, self.serial, self.arguments = {1}, [None] * 3, "", 7, ()
        self.slots[1] = moved

    def label(self, step: int) -> str:
        return f"label of {step}"

    def own(self, label: str) -> str:
        return label


def _deleted() -> Any:
    raise RuntimeError("Array has been deleted.")


@pytest.mark.parametrize(
    ("moved", "is_over"),
    [
        (SimpleNamespace(is_ready=lambda: True), True),
        (SimpleNamespace(is_ready=lambda: False), False),
        (SimpleNamespace(is_ready=_deleted), False),  # a later launch took its memory over
        (np.ones(1), False),  # and typed keys: they do not tell
        (None, False),
    ],
    ids=["over", "under way", "taken over", "does not tell", "let go"],
)
def test_a_transfer_whose_sending_took_until_it_was_over_was_waited_for(moved: Any, is_over: bool) -> None:
    run: Any = _OneMove(moved)
    cause = brought_by(run, 2, 1)
    assert (WHY[cause.why], cause.run) == ("data" if is_over else "message", 7)
    assert cause.label == ("label of 1" if is_over else enqueue_label(run, 0))


@pytest.mark.parametrize("hosts", [False, True])
def test_host_work_says_why_it_began(watchdog, hosts) -> None:
    with hosts_in_process(1, 1, 1) if hosts else pw.attach("cpu", islands=1, devices_per_island=1):
        place = pw.virtual_slice(1)
        step, at_host = pw.work(2e-3, on=place), pw.host(lambda x: x + 1, on=place, out=X)
        program = pw.program(lambda x: at_host(step(x)))
        program(X).wait()
        with pw.record() as run:
            pw.wait([program(X) for _ in range(3)])
    host = run.events.is_("kind", "host")
    assert host.sum() == 3
    assert set(run.events["why"][host]) == {"data"}, "it waits for what the devices make"


def test_a_cause_outside_of_the_record_counts_as_inferred() -> None:
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=2, dispatch="sequential"):
        wait = pw.work(1e-3, on=pw.virtual_slice(2))
        chain = pw.program(lambda x: wait(wait(x)))
        before = chain(X), chain(X)
        with pw.record() as run, pw.client("ann") as ann:
            with ann.acting():
                last = chain(X)
            pw.wait((before, last))
    outside = (run.events.stored("released_label") >= 0) & (run.events.releasers < 0)
    assert outside.any()
    assert "inferred" in repr(run.critical_path()).splitlines()[0], "its turn came when an earlier program ended"


def two_in_a_row(seconds: float) -> pw.Run:
    """One program is waited for while another is under way, and then a third is called."""
    with pw.attach("sim", chip="tpu_v3", islands=2, devices_per_island=2):
        here, there = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
        a, b, c = (
            pw.work(s, on=on, name=n) for s, on, n in ((1e-4, here, "a"), (seconds, there, "b"), (5e-4, here, "c"))
        )
        long, short = pw.program(lambda x: b(a(b(x)))), pw.program(lambda x: c(x))
        with pw.record() as run:
            first = long(np.ones(8, np.float32))
            short(np.ones(8, np.float32)).wait()
            pw.wait((first, short(np.ones(8, np.float32))))
    return run


def test_a_what_if_is_an_estimate_where_a_caller_may_have_waited_for_another_program() -> None:
    found = two_in_a_row(5e-4).what_if(node="b", faster=0.5)
    assert "an estimate: a caller waited while several programs ended" in found.summary_line()
    assert found.after != pytest.approx(two_in_a_row(1e-3).idle().span, rel=1e-3), "it is wrong, and says so"


def test_a_what_if_of_clients_that_compete_is_an_estimate() -> None:
    with pw.attach("sim", chip="tpu_v3", islands=2, devices_per_island=2):
        found = two_tenants().what_if(node="a", faster=2)
    assert not found.exact


@pytest.mark.parametrize("per_host", [2, 1])
def test_hosts_say_why_what_they_carry_out_began(watchdog, per_host) -> None:
    with hosts_in_process(2, 2, per_host):
        run = two_tenants()
    launched = run.events.is_("kind", "compute", "collective", "enqueue")
    assert (run.events.stored("why")[launched] >= 0).all()
    assert {"call", "turn"} <= set(reasons(run.events))
    at = np.flatnonzero(run.events.is_("why", "turn"))
    assert (run.events["released_by"][at] >= 0).all()


def test_causes_are_kept_in_files_parts_and_merged_records(tmp_path) -> None:
    with pw.attach("sim", chip="tpu_v3", islands=2, devices_per_island=2, policy="fifo"):
        run = two_tenants()
    run.save(tmp_path / "a.run")
    run.to_chrome(tmp_path / "a.json")
    absorbed = Record(origin=5.0)
    absorbed.absorb(Record.of(run.events))
    for again in (pw.load(tmp_path / "a.run").events, from_chrome(tmp_path / "a.json"), absorbed.events()):
        assert again["why"].tolist() == run.events["why"].tolist()
        assert again.releasers.tolist() == run.events.releasers.tolist()
    part = run.events.of_kind("compute")
    assert reasons(part) == Counter(run.events["why"][run.events.is_("kind", "compute")].tolist())
    assert (part["released_by"] == -1).all(), "messages alone are released by others, and they are not in this part"


def test_a_record_without_causes_says_that_they_are_inferred() -> None:
    with pw.attach("sim", chip="tpu_v3", islands=2, devices_per_island=2, policy="fifo"):
        run = two_tenants()
    told, guessed = run.critical_path(), critical_path(untold(run.events))
    assert "inferred" not in repr(told).splitlines()[0]
    assert repr(guessed).splitlines()[0].endswith("(causes inferred)")
    assert replace(told, inferred="").segments == guessed.segments, "in simulated time equal stamps tell the same"
