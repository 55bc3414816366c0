"""The controller's log: what cannot be played again says why, and what was changed is noticed.

That a log is played again alike, from any snapshot and from a file, is held by the random worlds (``random_world``).
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import random
import re
import types
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import pytest

from pathways_nb.controller import log_text
from pathways_nb.controller.events_and_instructions import Cancelled, Completed, Opened, Released, Skip, Submitted
from pathways_nb.controller.log import Log, Logbook, digest_of
from pathways_nb.controller.policies import POLICIES, stride
from pathways_nb.controller.replayable import why_not
from pathways_nb.controller.snapshot import Snapshot
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import UsageError
from tests.core.controller.imagined_devices import plan_of

LIMIT, SEEN = 3, list[int]()


def shortest(ready: Any, state: Any) -> Any:
    return min(ready, key=lambda gang: (gang.expected_seconds or 0.0, math.log1p(gang.serial), -LIMIT))


def through_another(ready: Any, state: Any) -> Any:
    return shortest(ready, state)


def drawn(ready: Any, state: Any) -> Any:
    return random.choice(ready)


def drawn_within(ready: Any, state: Any) -> Any:
    return min(ready, key=lambda gang: random.random())


def remembered(ready: Any, state: Any) -> Any:
    SEEN.append(1)
    return ready[len(SEEN) % len(ready)]


def numbered(ready: Any, state: Any) -> Any:
    numbered.calls = getattr(numbered, "calls", 0) + 1  # type: ignore[attr-defined]
    return ready[0]


def shifted(ready: Any, state: Any) -> Any:
    global LIMIT
    LIMIT += 1
    return ready[LIMIT % len(ready)]


def by_identity(ready: Any, state: Any) -> Any:
    return min(ready, key=id)


def with_default(ready: Any, state: Any) -> Any:
    return ready[0]


def with_a_default(ready: Any, state: Any, seen: list[int] = []) -> Any:  # noqa: B006
    seen.append(1)
    return ready[0]


def imported(ready: Any, state: Any) -> Any:
    import random

    return random.choice(ready)


def counting() -> Any:
    counts = itertools.count()

    def counted(ready: Any, state: Any) -> Any:
        return ready[next(counts) % len(ready)]

    return counted


def with_setattr(ready: Any, state: Any) -> Any:
    setattr(with_default, "calls", getattr(with_default, "calls", 0) + 1)  # noqa: B010
    return ready[0]


def through_a_dictionary(ready: Any, state: Any) -> Any:
    stride.__dict__["calls"] = 1
    return ready[0]


@functools.wraps(stride)
def disguised(ready: Any, state: Any) -> Any:
    return random.choice(ready)


def through_a_disguise(ready: Any, state: Any) -> Any:
    return disguised(ready, state)


def by_address(ready: Any, state: Any) -> Any:
    return min(ready, key=lambda gang: object.__repr__(gang))


def without_a_value() -> Any:
    def policy(ready: Any, state: Any) -> Any:
        return later(ready) if len(ready) > 99 else ready[0]

    if not LIMIT:
        later = min
    return policy


class Unequal:
    def __eq__(self, other: object) -> bool:
        return True

    def __call__(self, ready: Any, state: Any) -> Any:
        return ready[0]

    @property
    def __name__(self) -> str:
        raise RuntimeError("no name")


class Caller:
    def __call__(self, ready: Any, state: Any) -> Any:
        return ready[0]


@pytest.mark.parametrize("policy", [*POLICIES.values(), shortest, through_another], ids=lambda one: one.__name__)
def test_a_policy_that_computes_from_its_arguments_can_be_asked_again(policy) -> None:
    assert not why_not(policy)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (drawn, "the policy 'drawn' uses 'random', the module random, so it may be random or keep state"),
        (drawn_within, "uses 'random', the module random"),
        (remembered, "uses 'SEEN', which may change"),
        (numbered, "changes or imports 'calls'"),
        (shifted, "changes or imports 'LIMIT'"),
        (by_identity, "uses 'id', which may differ"),
        (with_a_default, "uses 'default 0', which may change"),
        (imported, "changes or imports 'random'"),
        (counting(), "uses 'counts', which may change"),
        (Caller(), "the policy 'Caller' is no plain function"),
        (with_setattr, "uses 'setattr', which may differ"),
        (through_a_dictionary, "reads '__dict__', which is private"),
        (through_a_disguise, "uses 'disguised', which uses 'random', the module random"),
        (by_address, "reads '__repr__', which is private"),
        (without_a_value(), "uses 'later', which has no value yet"),
        (Unequal(), "the policy 'Unequal' cannot be read (RuntimeError: no name)"),
    ],
    ids=lambda one: one.__name__ if isinstance(one, types.FunctionType) else type(one).__name__,
)
def test_a_policy_that_may_be_random_or_keep_state_is_marked_and_not_called(policy, reason) -> None:
    before = len(SEEN)
    log = Logbook(StateMachine(policy=policy)).log()
    assert reason in log.why_not
    assert len(SEEN) == before
    with pytest.raises(UsageError, match=f"this log cannot be played again: {re.escape(log.why_not)}."):
        next(log.replay())


def used(policy: Any = stride) -> Logbook:
    """A log of two programs, of which one has ended."""
    book = Logbook(StateMachine(policy=policy))
    book.begin()
    plan = plan_of([0, 1, 2], 0)
    book.handle(Opened("ann", 1.0, 0.0), 0.0)
    for run in range(2):
        book.handle(Submitted(run, "ann", plan, (), (run,), (4,)), 0.1)
    for island, order in plan.orders.items():
        book.handle(Completed(0, island, 0, len(order), 0.5), 1.0)
    return book


def test_an_answer_that_differs_is_named_with_its_event() -> None:
    log = used().log()
    (now, event, made), *rest = log.noted[1:]
    other = Log(log.snapshot, [log.noted[0], (now, event, made[:-1]), *rest])
    with pytest.raises(
        UsageError, match=r"replay: event 1 of \d, Submitted of run 0 at 0.100000 s, is answered otherwise"
    ):
        list(other.replay())


def test_instructions_are_kept_while_a_recording_is_on() -> None:
    book = Logbook(StateMachine())
    for number, recorded in enumerate((False, True, False)):
        beginning = book.begin() if recorded else None
        book.handle(Opened(f"client {number}", 1.0, 0.0), float(number))
        if beginning is not None:
            log = book.end(beginning)
            assert [bool(entry.digest) for entry in log.entries] == [False, True]
            assert (log.before, log.missing) == (1, 0)
            assert repr(log) == "<log of 2 events, the answers to 1 of them kept>"
    assert [bool(entry.digest) for entry in book.log().entries] == [False, True, False]
    assert len(list(book.log().replay())) == 3


def test_a_log_from_before_recordings_shared_snapshots_opens() -> None:
    log = log_text.to_json(used().log())
    assert [row for row in log["objects"] if row[0] == "function"] == [
        ["function", "pathways_nb.controller.policies", "stride"],
        ["function", "pathways_nb.controller.held_memory", "DeviceBytes.copy"],
    ]
    del log["before"], log["missing"]
    again = log_text.from_bytes(json.dumps(log).encode())
    assert (again.before, again.missing, again.why_not) == (0, 0, "")
    assert len(list(again.replay())) == len(again.entries)


def test_a_log_with_the_names_of_earlier_versions_opens_and_replays() -> None:
    book, plan = Logbook(StateMachine(devices=(1,)), least=0), plan_of([0, 0])
    for run in range(6):
        book.handle(Submitted(run, "ab"[run % 2], plan, (), (run,), (4,)), 0.0)
    start = book.begin()
    assert Skip(5) in book.handle(Cancelled((5,)), 0.0)
    # They had no checksum.
    text = json.dumps(log_text.to_json(book.end(start)))
    for now, before in (
        ("events_and_instructions", "messages"), ("ContendedTurns", "Turns"), ("CallState", "RunState"),
        ('"ranges"', '"runs"'), ('"calls"', '"runs"'), ('"lost_devices"', '"gone"'),
    ):  # fmt: skip
        assert now in text
        text = text.replace(now, before)
    again = log_text.from_bytes(text.encode())
    assert all(entry.digest for entry in again.entries)
    assert len(list(again.replay())) == len(again.entries) == 1
    assert digest_of([Skip(3)]) == blake2b(b"[Stop(run=3)]", digest_size=8).hexdigest()


def test_a_policy_that_has_the_name_of_one_of_ours_is_not_taken_for_it() -> None:
    again = log_text.from_bytes(log_text.as_bytes(used(disguised).log()))
    assert again.why_not == "the policy 'stride' uses 'random', the module random, so it may be random or keep state"
    assert again.snapshot.machine().policy is not stride


def test_a_users_policy_is_not_in_a_file() -> None:
    log = used(shortest).log()
    assert len(list(log.replay())) == len(log.entries)
    again = log_text.from_bytes(log_text.as_bytes(log))
    assert again.why_not == "its policy is a function of a user's, which a file does not hold"
    whole = replace(again, snapshot=with_policy(again.snapshot, shortest), why_not="")
    assert len(list(whole.replay())) == len(log.entries)


def with_policy(snapshot: Snapshot, policy: Any) -> Snapshot:
    machine = snapshot.machine()
    machine.policy = policy
    return Snapshot.of(machine)


def test_a_log_is_bounded_and_begins_where_a_recording_does() -> None:
    book = Logbook(StateMachine(), most=10, least=0)
    beginnings = {}
    for number in range(100):
        if number in (70, 95):
            beginnings[number] = book.begin()
        book.handle(Released((number,)), float(number))
        assert len(book.log().entries) < 2 * 10 + 1
    late, early = book.log(beginnings[95]), book.log(beginnings[70])
    assert [entry.now for entry in late.entries[late.before :]] == [95.0, 96.0, 97.0, 98.0, 99.0]
    assert late.missing == early.before == 0
    assert early.missing == early.entries[0].now - 70
    assert f"the first {early.missing} events of the recording forgotten" in repr(early)
    assert not book.log(book.begin()).entries, "nothing has happened since"


def test_many_short_recordings_share_a_snapshot() -> None:
    """Each would wait for a copy of the whole state, and keep it."""
    book = Logbook(StateMachine(devices=(4,), budgets=(8,)))
    for number in range(150):
        beginning = book.begin()
        book.handle(Released((number,)), float(number))
        log = book.end(beginning)
        assert [entry.now for entry in log.entries[log.before :]] == [float(number)]
    assert len({id(part.snapshot) for part in book._parts}) == 1
    for _ in range(10):  # nothing happens in them
        book.end(book.begin())
    book.handle(Released((1,)), 151.0)
    assert not book.log().entries[-1].digest, "no recording is on"


def test_an_event_at_which_the_core_fails_is_played_again_as_it_was() -> None:
    book = used()
    with pytest.raises(KeyError):
        book.handle(Completed(77, 0, 0, 1, 0.5), 3.0)
    log = log_text.from_bytes(log_text.as_bytes(book.log()))
    assert log.entries[-1].digest == "raised KeyError"
    assert [len(made) for _, made, _ in log.replay()][-1] == 0
    other = replace(log, noted=[*log.noted[:-1], (*log.noted[-1][:2], "")])
    with pytest.raises(UsageError, match=r"Completed of run 77 at 3.000000 s, cannot be handled \(KeyError: .*damaged"):
        list(other.replay())


def test_events_that_name_many_buffers_count_for_several() -> None:
    book = Logbook(StateMachine(), most=10)
    for number in range(40):
        book.handle(Released(tuple(range(640 * number, 640 * number + 640))), float(number))
    assert len(book.log().entries) <= 3


def test_a_long_line_of_programs_that_read_each_others_results() -> None:
    machine = StateMachine(devices=(4, 4, 4), budgets=(8, 8, 8))
    book, plan = Logbook(machine), plan_of([0, 1, 2, 0], 1)
    book.handle(Submitted(0, "ann", plan, (), (0,), (4,)), 0.0)
    for run in range(1, 3000):
        book.handle(Submitted(run, f"client {run % 50}", plan, (run - 1,), (run,), (4,)), 1e-3 * run)
    assert len(machine.calls) == 3000
    snapshot = Snapshot.of(machine)
    text = log_text.as_bytes(Log(snapshot, book.log().noted[-10:]))
    assert len(snapshot.machine().calls) == len(log_text.from_bytes(text).snapshot.machine().calls) == 3000
    assert len(list(book.log().replay())) == 3000


def test_a_plan_is_not_kept_alive() -> None:
    import gc
    import weakref

    book = used()
    plans = [weakref.ref(plan) for plan in book.machine._estimates]
    for run in list(book.machine.calls.values()):
        for island, order in run.plan.orders.items():
            if run.done[island] < len(order):
                book.handle(Completed(run.submitted.run, island, 0, len(order), 0.5), 2.0)
    del run
    gc.collect()
    assert not book.machine.calls
    assert plans
    assert all(plan() is None for plan in plans)
    assert len(list(book.log().replay())) == len(book.log().entries)
