"""Soak: clients that come, go, fail and are cancelled, with little memory; every answer is right, and nothing is left.

Eight threads of users call 20,000 programs over two islands and keep or drop the results, while launches are made to
fail at random; in one phase devices are removed and added back. Every result asked for must equal NumPy's to the last
bit, or be an error that names one of the injected causes. Afterwards no byte is held, and no logical buffer, run, array
or thread is left. Over so many calls the counts also show a leak that occurs rarely.
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import pathways_nb as pw
from pathways_nb.bench._users import REASONS, SoakProgram, User, UserPopulation, fresh, kinds
from pathways_nb.controller.held_memory import IslandMemory
from pathways_nb.controller.invariants import check_invariants
from pathways_nb.runtime.local_islands import LocalAttachment
from pathways_nb.session.calls import submit

PROGRAMS, USERS, DEVICES = 20_000, 8, 4
"""Programs of all phases, threads of users, and devices of each island."""
BUDGET = 8
"""Memory of each device, as a multiple of the largest peak of any program."""
FAULTS = 0.03
"""Share of launches that fail."""
PATIENCE = 60.0
"""Seconds without the end of any program after which the run counts as hung."""
SETTLING = 10.0
"""Seconds within which memory that nothing holds must be freed."""
LEFT = ("bytes_left", "buffers_left", "runs_left", "arrays_left", "threads_left")
"""Counts taken when all users have ended."""


def latest(ready: Any, state: Any) -> Any:
    """Return the newest gang: a policy of the user's own."""
    return max(ready, key=lambda gang: gang.serial)


class Phase(NamedTuple):
    """An equal part of the programs, under one policy.

    Args:
        policy: as for ``pw.attach``.
        dispatch: as for ``pw.attach``.
        losing: whether devices are removed and added back meanwhile.
    """

    policy: Any
    dispatch: Any = "parallel"
    losing: bool = False


PHASES = (
    Phase("stride"),
    Phase("fifo"),
    Phase("priority"),
    Phase("shortest"),
    Phase(latest),
    Phase("stride", dispatch="sequential"),
    Phase("stride", losing=True),
)
"""Every policy with parallel dispatch, sequential dispatch, and lost devices."""


def run() -> dict[str, Any]:
    """Return the outcomes of 20,000 programs of 8 threads."""
    return soak(PROGRAMS)


def soak(programs: int, users: int = USERS, seed: int = 0) -> dict[str, Any]:
    """Return the outcomes of programs called under each policy in turn, and what was left afterwards.

    Args:
        programs: number of programs of all users and phases.
        users: number of threads.
        seed: of all random choices.

    Raises:
        RuntimeError: no program has ended for a minute; the stack of every thread is on standard error.
    """
    known = kinds(pw.virtual_slice(DEVICES, island=0, name="left"), pw.virtual_slice(DEVICES, island=1, name="right"))
    # Peaks are known once programs are compiled, so a controller without a limit compiles them first.
    with pw.attach("cpu", islands=2, devices_per_island=DEVICES) as unlimited:
        hbm = BUDGET * _largest_peak(unlimited, known)
    rows = []
    for number, phase in enumerate(PHASES):
        share = programs * (number + 1) // len(PHASES) - programs * number // len(PHASES)
        rows.append(_phase(phase, known, hbm, share, users, seed + number))
    unexplained = [text for row in rows for text in row["unexplained"]]
    return {"figures": _figures(rows), "detail": {"outcomes": _table(rows), "unexplained": unexplained or "none"}}


def _figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the totals of all phases: programs by outcome, what was left, and programs per second."""
    outcomes = sum((row["outcomes"] for row in rows), Counter[str]())
    unexplained = sum(len(row["unexplained"]) for row in rows)
    return {
        "programs": outcomes.total() + unexplained,
        "right": outcomes["right"],
        "failed": sum(outcomes[reason] for reason in REASONS),
        "unexplained": unexplained,
        **{name.replace(" ", "_"): outcomes[name] for name in (*REASONS, "dropped unseen")},
        **{name: sum(row[name] for row in rows) for name in LEFT},
        "programs_per_second": sum(row["programs"] for row in rows) / sum(row["seconds"] for row in rows),
    }


def _table(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each phase."""
    return [
        row["phase"]
        | {"per second": round(row["programs"] / row["seconds"])}
        | {name: row["outcomes"][name] for name in ("right", *REASONS, "dropped unseen")}
        for row in rows
    ]


def _phase(
    phase: Phase, known: Sequence[SoakProgram], hbm: int, programs: int, users: int, seed: int
) -> dict[str, Any]:
    """Return the outcomes of users under one policy, and what was left after they had ended.

    Args:
        phase: policy, dispatch, and whether devices are lost.
        known: the programs that users call.
        hbm: memory of each device, bytes.
        programs: number of programs.
        users: number of threads.
        seed: of all random choices.
    """
    before, population = set(threading.enumerate()), UserPopulation(known, hbm / 2)
    policy, dispatch, losing = phase
    with pw.attach(
        "cpu", islands=2, devices_per_island=DEVICES, policy=policy, dispatch=dispatch, hbm=hbm
    ) as controller:
        _call_each(known)
        began = time.perf_counter()
        with pw.inject_fault(times=programs, probability=FAULTS, seed=seed):
            everyone = [User(population, n, programs // users + (n < programs % users), seed) for n in range(users)]
            _work(population, everyone, _losses(controller) if losing else itertools.repeat(None))
        seconds = time.perf_counter() - began
        population.passed_on.clear()
        left = _left(controller)
    threads = [thread for thread in threading.enumerate() if thread not in before]
    about = {"policy": getattr(policy, "__name__", policy), "dispatch": dispatch, "devices lost": losing}
    return left | {
        "phase": about, "programs": programs, "seconds": seconds, "threads_left": len(threads),
        "outcomes": population.outcomes, "unexplained": population.unexplained,
    }  # fmt: skip


def _losses(controller: pw.Controller) -> Iterator[None]:
    """Yield after each step of a sequence: remove devices of one island, add them back, turn to the other."""
    for turn in itertools.count():
        island = turn % 2
        controller.remove(island, first=turn % DEVICES)
        yield
        controller.add(island=island)
        yield from itertools.repeat(None, 40)


def _call_each(known: Sequence[SoakProgram]) -> None:
    """Call each program once before the clock starts, so that everything is compiled."""
    for kind in known:
        value = fresh(random.Random(0))
        pw.get(kind.program(value if kind.takes is None else pw.put(value, on=kind.takes, shardings=pw.P("x"))))


def _largest_peak(controller: pw.Controller, known: Sequence[SoakProgram]) -> int:
    """Return the bytes that the most demanding program needs on a device."""
    _call_each(known)
    peaks = []
    for kind in known:
        call = kind.program.signature((fresh(random.Random(0)),), {})
        traced = kind.program.cached(call, call.avals(), controller.platform)
        assert traced is not None
        peaks += [peak.bytes for peak in submit.compiled_plan(controller, traced, call).peaks]
    return max(peaks)


def _work(population: UserPopulation, users: Sequence[User], meanwhile: Iterator[None]) -> None:
    """Start all users and wait for them, advancing ``meanwhile`` all the time.

    Args:
        population: state that users share.
        users: threads to start.
        meanwhile: steps that change the controller's devices, or nothing.

    Raises:
        RuntimeError: no program has ended for ``PATIENCE`` seconds.
    """
    for user in users:
        user.start()
    seen, since = -1, time.monotonic()
    while any(user.is_alive() for user in users):
        time.sleep(0.02)
        next(meanwhile)
        if (count := population.outcomes.total()) != seen:
            seen, since = count, time.monotonic()
        elif time.monotonic() > since + PATIENCE:
            # ``sys.stderr`` may be replaced by an object without a file descriptor, which faulthandler needs.
            faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)
            raise RuntimeError(f"soak: nothing has ended for {PATIENCE:.0f} s after {seen} programs")


def _left(controller: pw.Controller) -> dict[str, int]:
    """Return what the controller still holds although no variable needs it, once it has had time to free it."""
    driver, machine = controller.driver, controller.machine
    deadline = time.monotonic() + SETTLING
    while True:
        # Futures in reference cycles are released only by the collector.
        gc.collect()
        found = {
            "bytes_left": sum(map(_bytes, machine.memory.islands)),
            "buffers_left": len(machine.store.buffers) + len(driver.entries),
            "runs_left": len(machine.calls) + len(driver.runs),
            "arrays_left": _arrays(controller),
        }
        if not any(found.values()) or time.monotonic() > deadline:
            check_invariants(machine)
            return found
        time.sleep(0.01)


def _bytes(island: IslandMemory) -> int:
    """Return the bytes held on all devices of an island together."""
    return sum((after - first) * held.total for first, after, held in island.ranges)


def _arrays(controller: pw.Controller) -> int:
    """Return the number of live arrays on the islands."""
    attachment = cast(LocalAttachment, controller.driver.attachment)
    return sum(len(island.devices[0].client.live_arrays()) for island in attachment.islands)
