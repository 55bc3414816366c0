"""Imagined devices around the pure controller: what a driver, XLA and its memory would do, a step at a time.

They know only plans and instructions, and keep accounts of their own: which step may run, what has failed, which
buffer is live, how many bytes each device really holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pathways_nb.controller.events_and_instructions import (
    Completed,
    Fail,
    Finish,
    Free,
    Grant,
    Launch,
    Lose,
    MemoryHeld,
    PutRequested,
    Refuse,
    Skip,
    Submitted,
    Voided,
    Waited,
    Wake,
)
from pathways_nb.errors import LostError, OutOfMemoryError, PolicyError
from pathways_nb.plan.footprint import Allocation, Sizes, covers, overlap
from pathways_nb.plan.graph import Graph
from pathways_nb.plan.memory_categories import DECLARED
from pathways_nb.plan.plan import Placement, Plan, Slot, Step
from pathways_nb.runtime.memory_events import MemoryEvents

ONE_EACH = {island: Placement(island, 0, 1) for island in range(3)}
"""A place on each of three islands of one device."""


def plan_of(
    places: list[int],
    results: int | Sequence[int] = 1,
    arguments: int = 0,
    where: Mapping[int, Placement] = ONE_EACH,
    reads: Sequence[Sequence[int]] = (),
) -> Plan:
    """First ``arguments`` are brought, then a step runs on each of ``places``: a chain, unless ``reads`` says otherwise.

    Step ``i`` makes slot ``i``. ``reads`` has a list for each place, of slots before; ``results`` says which slots are
    results, or how many of the last are.
    """
    on = places[:1] * arguments + places
    read = [(), *((i - 1,) for i in range(1, len(on)))]
    read[:arguments] = [()] * arguments
    for i, wanted in enumerate(reads[: len(places)], arguments):
        read[i] = tuple(sorted({slot % i for slot in wanted} if i else ()))
    steps = tuple(
        Step("bring", i, place, where[place].island, (), (i,), argument=i)
        if i < arguments
        else Step("launch", i, place, where[place].island, read[i], (i,), producers=read[i])
        for i, place in enumerate(on)
    )
    orders: dict[int, tuple[int, ...]] = {}
    for index, step in enumerate(steps):
        orders[step.island] = (*orders.get(step.island, ()), index)
    slots = tuple(Slot(i, place) for i, place in enumerate(on))
    if isinstance(results, int):
        results = range(len(on))[-results:] if results else ()
    placements = {place: where[place] for place in on}
    graph = Graph("plan", (), (), categories={value: DECLARED[value] for value in range(0, len(DECLARED), 2)})
    return Plan(graph, placements, slots, steps, dict(sorted(orders.items())), tuple(results), {})


def _bringing(event: Submitted, buffer: int) -> int:
    """The step of a run that brings a buffer."""
    argument = event.arguments.index(buffer)
    return next(at for at, step in enumerate(event.plan.steps) if step.kind == "bring" and step.argument == argument)


class Devices:
    """They carry out each island's order step by step, a step as soon as what it reads is done.

    Args:
        budgets: bytes per device of each island; 0: no limit.
    """

    def __init__(self, budgets: Iterable[int]):
        self.budgets = list(budgets)
        self.now = 0.0
        self.wake: float | None = None
        """When the controller wants to be woken."""
        self.lost_devices: list[Placement] = []
        self.submitted: dict[int, Submitted] = {}
        self.sizes: dict[int, Sizes] = {}
        self.order: dict[int, list[tuple[Launch, int]]] = {}
        """By island: steps not done yet, in the order they were told, with the launch that told them."""
        self.enqueued: dict[int, list[tuple[int, int]]] = {}
        """By island: all steps that it was ever told, by run."""
        self.reserving: dict[int, PutRequested] = {}
        """By buffer: values that wait for room."""
        self.passed: dict[int, int] = {}
        """By buffer: programs and values that began while it waited for room."""
        self.told: dict[tuple[int, int], int] = {}
        self.made: set[tuple[int, int]] = set()
        self.done: set[tuple[int, int]] = set()
        """Steps, by run, that have computed, and that have ended."""
        self.to_read: dict[int, set[int]] = {}
        """By buffer: runs that have not brought it to their places yet."""
        self.makers: dict[int, tuple[int, int]] = {}
        """By buffer: the run and step that makes it."""
        self.lost: set[int] = set()
        self.freed: set[int] = set()
        self.taken: set[int] = set()
        """Buffers whose memory was taken over, perhaps before the run that made them has finished."""
        self.finished: set[int] = set()
        self.stopped: set[int] = set()
        self.live: dict[tuple[str, int, int], Allocation] = {}
        """What really takes memory: arrays of buffers, slots of runs, and copies of arguments."""
        self.arrays: dict[int, int] = {}
        """By buffer: the first buffer that was the same array."""
        self.memory_events = MemoryEvents(lambda: self.now, lambda row: None)
        self.obeyed: Counter[str] = Counter()
        """Instructions by kind."""
        self.failed: Counter[str] = Counter()
        """Runs that the controller failed, by the kind of error."""

    @property
    def busy(self) -> bool:
        """Whether anything is enqueued."""
        return any(self.order.values())

    def submit(self, event: Submitted, sizes: Sizes) -> None:
        """A run is about to be told to the controller."""
        self.submitted[event.run], self.sizes[event.run] = event, sizes
        for buffer, slot in zip(event.results, event.plan.results, strict=True):
            self.makers[buffer] = event.run, slot  # step i makes slot i
        for buffer in event.arguments:
            self.to_read.setdefault(buffer, set()).add(event.run)

    def reserve(self, event: PutRequested) -> None:
        """Room is about to be asked for."""
        self.reserving[event.buffer], self.passed[event.buffer] = event, 0

    # ---- instructions

    def obey(self, instruction: Any) -> None:
        """Take one, as a driver would."""
        self.obeyed[type(instruction).__name__] += 1
        match instruction:
            case Launch(run, island, start, stop):
                order = self.submitted[run].plan.orders[island]
                assert start < stop <= len(order)
                assert self.told.get((run, island), 0) == start, "steps are told once, in order"
                if run not in self.stopped and not any(began == run for began, _ in self.told):
                    self._passes()
                self.told[run, island] = stop
                self.enqueued.setdefault(island, []).extend((run, step) for step in order[start:stop])
                self.order.setdefault(island, []).extend((instruction, step) for step in order[start:stop])
            case Free(buffers):
                assert not self.freed & set(buffers)
                assert len(set(buffers)) == len(buffers)
                self.freed |= set(buffers)
                self._drop(buffers)
                for buffer in buffers:
                    self.reserving.pop(buffer, None)
            case Grant(buffer, since):
                assert since <= self.now
                allocation = self.reserving.pop(buffer).allocation
                self.hold(buffer, allocation)
                self._check_room(allocation.placement, 0)
                self._passes()
            case Refuse(buffer, since, error):
                assert since <= self.now
                assert isinstance(error, (LostError, OutOfMemoryError))
                del self.reserving[buffer]
            case Lose(buffers, reasons):
                assert len(reasons) == len(buffers) > 0
                self.lost |= set(buffers)
                self._drop(buffers)
            case Finish(run):
                self._finish(run)
            case Skip(run):
                assert run not in self.finished
                self.stopped.add(run)
            case Fail(run, error):
                assert run not in self.finished
                assert isinstance(error, (LostError, OutOfMemoryError, PolicyError))
                self.stopped.add(run)
                self.failed[type(error).__name__] += 1
            case MemoryHeld():
                self.memory_events.change(instruction)
            case Waited(run, since, reason):
                assert since <= self.now
                assert reason
            case Wake(at):
                assert at > self.now
                self.wake = at if self.wake is None else min(at, self.wake)
            case _:
                raise AssertionError(instruction)

    def _passes(self) -> None:
        """Something begins while values wait for room."""
        for buffer in self.reserving:
            self.passed[buffer] += 1

    def orders(self) -> dict[Hashable, list[tuple[int, int]]]:
        """All orders of steps that there are: of each island's enqueues, and of each step after one that it needs."""
        found: dict[Hashable, list[tuple[int, int]]] = dict(self.enqueued)
        for run, index in [each for steps in self.enqueued.values() for each in steps]:
            for before in self._needed(run, index):
                found["needs", before, (run, index)] = [before, (run, index)]
        return found

    def _needed(self, run: int, index: int) -> Iterator[tuple[int, int]]:
        """Steps, by run, that must be done before a step can run; what was given up reads nothing of other runs."""
        event = self.submitted[run]
        step = event.plan.steps[index]
        yield from ((run, producer) for producer in step.producers)
        if step.kind != "bring" or run in self.stopped:
            return
        buffer = event.arguments[step.argument]
        if buffer in self.makers and buffer not in self.lost:
            yield self.makers[buffer]
        if step.argument in event.footprint.taken:
            for other in self.submitted.values():
                if other.run < run and buffer in other.arguments:
                    yield other.run, _bringing(other, buffer)

    def check_order(self) -> None:
        """Nothing is enqueued before what it needs."""
        for queue in self.order.values():
            for launch, step in queue:
                for producer in self.submitted[launch.run].plan.steps[step].producers:
                    assert self._is_told(launch.run, producer), "enqueued before what it needs"

    def _is_told(self, run: int, step: int) -> bool:
        island, position = self.submitted[run].plan.position(step)
        return position < self.told.get((run, island), 0)

    def hold(self, buffer: int, allocation: Allocation) -> None:
        """A buffer is an array of its own."""
        self.arrays[buffer] = buffer
        self.live["buffer", buffer, 0] = allocation

    def _drop(self, buffers: Iterable[int]) -> None:
        for buffer in buffers:
            array = self.arrays.pop(buffer, None)
            if array not in self.arrays.values():
                self.live.pop(("buffer", array, 0), None)

    def _finish(self, run: int) -> None:
        assert run not in self.finished
        event = self.submitted[run]
        assert all((run, step) in self.done for step in range(len(event.plan.steps)))
        self.finished.add(run)
        if run not in self.stopped:
            taken = {event.arguments[i] for i in event.footprint.taken}
            self.taken |= taken
            self._drop(taken)
        for buffer, slot in zip(event.results, event.plan.results, strict=True):
            if buffer not in self.taken:
                self._keep(run, buffer, slot)
        self.live = {key: h for key, h in self.live.items() if key[0] == "buffer" or key[1] != run}

    def _keep(self, run: int, buffer: int, slot: int) -> None:
        """A result is what is in its slot, or the argument that lay at its place already."""
        event = self.submitted[run]
        allocation, first = self.live.get(("slot", run, slot)), event.results[event.plan.results.index(slot)]
        if first in self.arrays:
            self.arrays[buffer] = self.arrays[first]
        elif allocation is not None:
            self.hold(buffer, allocation)
        elif (run, slot) in self.made and event.plan.steps[slot].kind == "bring":
            argument = event.arguments[event.plan.steps[slot].argument]
            if argument in self.arrays:
                self.arrays[buffer] = self.arrays[argument]

    # ---- steps

    def runnable(self) -> list[int]:
        """Islands whose next step has all that it waits for."""
        heads = {island: queue[0] for island, queue in self.order.items() if queue}
        return [island for island, (launch, step) in heads.items() if self._can_run(launch.run, step)]

    def _can_run(self, run: int, step: int) -> bool:
        event = self.submitted[run]
        what = event.plan.steps[step]
        if any((run, producer) not in self.done for producer in what.producers):
            return False
        if what.kind != "bring" or run in self.stopped:
            return True
        buffer = event.arguments[what.argument]
        if what.argument in event.footprint.taken and self.to_read[buffer] != {run}:
            return False  # its memory is taken over: all others must have read it
        return buffer in self.lost or buffer not in self.makers or self.makers[buffer] in self.done

    def carry_out(self, island: int, seconds: float, fails: bool = False) -> Iterator[Voided | Completed]:
        """The next step of an island ends; what the controller is told when it was the last of its launch."""
        launch, step = self.order[island].pop(0)
        run, event = launch.run, self.submitted[launch.run]
        if not fails and self._can_compute(run, step):
            self._compute(run, step)
            self.made.add((run, step))
        self.done.add((run, step))
        self._let_go(run, step)
        if (what := event.plan.steps[step]).kind == "bring":
            self.to_read[event.arguments[what.argument]].discard(run)
        if not any(other is launch for other, _ in self.order[island]):
            unmade = [b for b in event.results if self.makers[b] in self.done - self.made]
            if any(each not in self.made for each in self.done if each[0] == run):
                yield Voided(tuple(unmade))
            yield Completed(run, island, launch.start, launch.stop, seconds)

    def _can_compute(self, run: int, step: int) -> bool:
        event = self.submitted[run]
        what = event.plan.steps[step]
        if run in self.stopped or any((run, producer) not in self.made for producer in what.producers):
            return False
        if any(overlap(event.plan.placements[what.place], where) for where in self.lost_devices):
            return False
        if what.kind != "bring":
            return True
        buffer = event.arguments[what.argument]
        return buffer not in self.lost and (buffer not in self.makers or self.makers[buffer] in self.made)

    def _compute(self, run: int, step: int) -> None:
        """Memory as a device would use it: outputs and temporaries come."""
        plan, sizes = self.submitted[run].plan, self.sizes[run]
        what = plan.steps[step]
        if what.kind == "bring":
            brought = [s for s in plan.steps if s.kind == "bring"].index(what)
            if brought not in self.submitted[run].moved and not self._must_copy(run, what.argument):
                return
        place = plan.placements[what.place]
        for slot in what.outputs:
            self.live["slot", run, slot] = Allocation(place, sizes.slots[slot])
        self._check_room(place, sizes.temporary.get(step, 0))

    def _let_go(self, run: int, step: int) -> None:
        """What nobody reads any more goes, also when the last reader has failed."""
        plan = self.submitted[run].plan
        for slot in (*plan.steps[step].inputs, *plan.steps[step].outputs):
            readers = {i for i, s in enumerate(plan.steps) if slot in s.inputs}
            if slot not in plan.results and all((run, reader) in self.done for reader in readers):
                self.live.pop(("slot", run, slot), None)

    def _must_copy(self, run: int, argument: int) -> bool:
        """Whether it takes an argument over that others have, too."""
        event = self.submitted[run]
        array = self.arrays.get(event.arguments[argument])
        return argument in event.footprint.taken and list(self.arrays.values()).count(array) > 1

    def _check_room(self, place: Placement, temporary: int) -> None:
        if budget := self.budgets[place.island]:
            for device in range(place.first, place.first + place.count):
                used = sum(h.bytes for h in self.live.values() if covers(h.placement, place.island, device))
                assert used + temporary <= budget, "a device ran out of memory"

    def used(self, island: int, device: int) -> int:
        """Bytes of all buffers on a device."""
        of_buffers = (allocation for (kind, *_), allocation in self.live.items() if kind == "buffer")
        return sum(h.bytes for h in of_buffers if covers(h.placement, island, device))

    def told_of(self, island: int, devices: int) -> list[dict[tuple[str, str], int]]:
        """For each device of an island, what each client holds there by category, by the levels that were told."""
        found: list[dict[tuple[str, str], int]] = [{} for _ in range(devices)]
        for (where, client), ranges in self.memory_events._now.items():
            for first, levels in ranges.items() if where == island else ():
                for device in range(first, first + levels.count):
                    found[device] |= {(client, category): size for category, (size, _) in levels.parts.items()}
        return found
