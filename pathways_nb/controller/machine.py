"""The controller: events in, instructions out (Pathways, sections 4.2 to 4.6). No JAX, threads, clocks or printing.

It keeps one total order of enqueues per island. A program takes its places in all islands' orders in one atomic
step, so the orders are always compatible and gangs cannot deadlock. With parallel asynchronous dispatch a program
goes out whole; with sequential dispatch its steps go out one after another, each when the one before is done.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from pathways_nb.controller.ledger import Ledger
from pathways_nb.controller.messages import (
    Cancelled,
    Completed,
    Event,
    Finish,
    Free,
    Instruction,
    Launch,
    Released,
    Stop,
    Stored,
    Submitted,
)

Dispatch = Literal["parallel", "sequential"]


@dataclass
class RunState:
    """One submitted program: what is launched and what is done on each island, as counts of its order there."""

    submitted: Submitted
    launched: dict[int, int]
    done: dict[int, int]
    next_step: int = 0
    """Sequential dispatch: the next step in program order."""
    cancelled: bool = False


@dataclass
class Machine:
    """The whole state of the single controller; ``handle`` is its only door.

    Args:
        dispatch: ``"parallel"`` or ``"sequential"`` (Pathways, Figure 4).
    """

    dispatch: Dispatch = "parallel"
    ledger: Ledger = field(default_factory=Ledger)
    runs: dict[int, RunState] = field(default_factory=dict)
    orders: dict[int, list[int]] = field(default_factory=dict)
    """For each island, unfinished runs in the order of their enqueues."""

    def handle(self, event: Event) -> list[Instruction]:
        """Take an event, change state, and say what is to be done."""
        return self._handlers[type(event)](self, event)

    def _submitted(self, event: Submitted) -> list[Instruction]:
        self.ledger.hold(event.arguments)
        for buffer, size in zip(event.results, event.result_bytes, strict=True):
            self.ledger.add(buffer, event.client, size, references=2)  # the user's handle and the run itself
        islands = event.plan.islands
        self.runs[event.run] = RunState(event, dict.fromkeys(islands, 0), dict.fromkeys(islands, 0))
        for island in islands:
            self.orders.setdefault(island, []).append(event.run)
        return self._dispatch(event.run) if self._may_start(event.run) else []

    def _stored(self, event: Stored) -> list[Instruction]:
        self.ledger.add(event.buffer, event.client, event.bytes, references=1)
        return []

    def _completed(self, event: Completed) -> list[Instruction]:
        run = self.runs[event.run]
        run.done[event.island] = event.stop
        if run.next_step < len(run.submitted.plan.steps):
            return self._dispatch(event.run)
        return self._finish(event.run) if self._is_done(run) else []

    def _released(self, event: Released) -> list[Instruction]:
        return _free(self.ledger.drop(event.buffers))

    def _cancelled(self, event: Cancelled) -> list[Instruction]:
        out: list[Instruction] = []
        for serial in event.runs:
            run = self.runs.get(serial)
            if run is not None and not run.cancelled:
                run.cancelled = True
                out.append(Stop(serial))
        return out

    def _dispatch(self, serial: int) -> list[Instruction]:
        run = self.runs[serial]
        plan = run.submitted.plan
        if not plan.steps:
            return self._finish(serial)
        if self.dispatch == "parallel" or run.cancelled:
            out = [Launch(serial, i, run.launched[i], len(plan.orders[i])) for i in plan.islands]
            run.next_step = len(plan.steps)
        else:
            island = plan.steps[run.next_step].island
            out = [Launch(serial, island, run.launched[island], run.launched[island] + 1)]
            run.next_step += 1
        ready = [launch for launch in out if launch.stop > launch.start]
        for launch in ready:
            run.launched[launch.island] = launch.stop
        return list(ready)

    def _may_start(self, serial: int) -> bool:
        """Whether it goes out now; with sequential dispatch the oldest program only, or steps could wait in a ring."""
        return self.dispatch == "parallel" or next(iter(self.runs)) == serial

    def _is_done(self, run: RunState) -> bool:
        return all(run.done[island] == len(order) for island, order in run.submitted.plan.orders.items())

    def _finish(self, serial: int) -> list[Instruction]:
        run = self.runs.pop(serial)
        for island in run.submitted.plan.islands:
            self.orders[island].remove(serial)
        held = (*run.submitted.arguments, *run.submitted.results)
        out = [Finish(serial), *_free(self.ledger.drop(held))]
        following = next(iter(self.runs), None)
        if self.dispatch == "sequential" and following is not None:
            out += self._dispatch(following)
        return out

    _handlers: dict[type, Callable[[Any, Any], list[Instruction]]] = field(
        default_factory=lambda: {
            Submitted: Machine._submitted,
            Stored: Machine._stored,
            Completed: Machine._completed,
            Released: Machine._released,
            Cancelled: Machine._cancelled,
        },
        repr=False,
    )


def _free(buffers: tuple[int, ...]) -> list[Instruction]:
    return [Free(buffers)] if buffers else []


def check_invariants(state: Machine) -> None:
    """Raise ``AssertionError`` if the state contradicts itself; the tests call it after every event.

    No buffer without a reference, no count below what the runs hold, no island's order that contradicts another's,
    nothing done that was not launched.
    """
    held: dict[int, int] = {}
    for run in state.runs.values():
        for buffer in (*run.submitted.arguments, *run.submitted.results):
            held[buffer] = held.get(buffer, 0) + 1
        for island, order in run.submitted.plan.orders.items():
            assert 0 <= run.done[island] <= run.launched[island] <= len(order), (run, island)
    for buffer, count in held.items():
        assert buffer in state.ledger.buffers, f"buffer {buffer} is freed while a run needs it"
        assert state.ledger.buffers[buffer].references >= count, f"buffer {buffer} has too few references"
    assert all(entry.references > 0 for entry in state.ledger.buffers.values())
    for one, other in itertools.combinations(state.orders.values(), 2):
        common = set(one) & set(other)
        assert [r for r in one if r in common] == [r for r in other if r in common], "islands' orders contradict"
    assert all(run in state.runs for order in state.orders.values() for run in order)
