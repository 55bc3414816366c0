"""What becomes of the steps that simulated islands carry out: how long each takes, how it fails, and what is recorded.

The islands decide when a step begins (``simulated_islands``); this answers their questions about it. Nothing is carried
out: values are abstract, and a result's entry gets a shape and a type.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from pathways_nb.cost.hardware.host_costs import HostCosts
from pathways_nb.plan.plan import Placement
from pathways_nb.program.host_function import check_seconds
from pathways_nb.runtime import abstract_places
from pathways_nb.runtime.entries import Entry
from pathways_nb.runtime.run_state import RunState
from pathways_nb.runtime.sim.sim_failures import Failures
from pathways_nb.runtime.sim.simulated_islands import Islands, OngoingLaunch, Task
from pathways_nb.runtime.sim.simulated_pod import Abstract
from pathways_nb.runtime.sim.step_costs import StepCosts, beside_others, brought, links_of
from pathways_nb.timing.event_queue import EventQueue
from pathways_nb.timing.waits import LANE
from pathways_nb.trace.rows import BY, Row, RowRange


class Chance:
    """A random factor on each duration.

    Args:
        noise: standard deviation of the factor's logarithm; 0 for none.
        seed: of the generator.
    """

    def __init__(self, noise: float, seed: int):
        self.noise, self._random = noise, random.Random(seed)

    def of(self, seconds: float) -> float:
        """Return a duration with its factor."""
        return seconds * self._random.lognormvariate(0.0, self.noise) if self.noise and seconds else seconds


class SimulatedSteps:
    """The owner of one controller's simulated islands.

    Args:
        agenda: simulated time.
        host: costs of the islands' hosts.
        count: number of islands.
        costs: of steps.
        failures: decide which steps fail.
        chance: a random factor on each duration.
        filled: called when results have got their values.
        launch_ended: called when the last step of a launch ends.
    """

    def __init__(
        self,
        agenda: EventQueue,
        host: HostCosts,
        count: int,
        costs: StepCosts,
        failures: Failures,
        chance: Chance,
        filled: Callable[[], None],
        launch_ended: Callable[[OngoingLaunch], None],
    ):
        self.agenda, self.costs, self.failures, self._chance = agenda, costs, failures, chance
        self._filled, self.launch_ended = filled, launch_ended
        self.islands = Islands(agenda, self, host.launch)
        self._expecting: defaultdict[tuple[int, int], list[Task]] = defaultdict(list)
        """By run and step: tasks of other runs that bring an output of the step to their place."""
        self._interference = host.interference
        self.at_work = [0] * count
        """By island: number of nodes that have begun and not ended; kept only where there is interference."""

    def prepared(self, task: Task) -> int:
        """Return 1 if a task brings a result of another run that is not computed yet, else 0."""
        run: RunState = task.ongoing.run.state
        position = run.compiled_plan.plan.steps[task.index].argument
        if position < 0:
            return 0
        entry = run.arguments[position]
        if entry.run is None or entry.resolved:
            return 0
        self._expecting[entry.run.serial, entry.step].append(task)
        return 1

    def lasts(self, task: Task) -> float:
        """Return the seconds of a step that begins now, and set its label.

        They are 0 for a step that is skipped or fails, and for an argument that is already at its place.
        """
        run: RunState = task.ongoing.run.state
        task.label = run.compiled_plan.actions[task.index].label
        run.begun = run.begun or self._on_devices(task)
        seconds = task.ongoing.run.timed.seconds[task.index]
        if callable(declared := run.compiled_plan.actions[task.index].seconds):
            seconds = 0.0 if run.stopped or run.errors else check_seconds(task.label.name, declared())
        if run.stopped or run.errors or self.failures.lost_devices or self.failures.faults or not task.queues:
            seconds = self._hindered(run, task, seconds)
        if self._interference and self._on_devices(task):
            if seconds and self._is_interfered(task.ongoing.launch.island):
                seconds, task.label = seconds + self._interference, beside_others(task.label)
            self.at_work[task.ongoing.launch.island] += 1
        return self._chance.of(seconds)

    def _hindered(self, run: RunState, task: Task, seconds: float) -> float:
        """Return the seconds of a step that may fail or brings an argument; without a label it is not recorded."""
        label, task.label = task.label, None
        if self.failures.stop(run, task.index, label):
            return 0.0
        if run.compiled_plan.plan.steps[task.index].argument >= 0:
            return self._bring(run, task)
        task.label = label
        return seconds

    @staticmethod
    def _on_devices(task: Task) -> bool:
        """Return whether a step is a launch."""
        return bool(task.queues) and task.ongoing.run.timed.plan.steps[task.index].kind == "launch"

    def _is_interfered(self, island: int) -> bool:
        """Return whether all other islands work.

        Where hosts have no cores of their own, a node that begins then is slower (``HostCosts.interference``).
        """
        others = self.at_work[:island] + self.at_work[island + 1 :]
        return bool(others) and all(others)

    def link(self, task: Task) -> tuple[Sequence[Hashable], float]:
        """Return the links and the latency in the task's label."""
        return task.label.links, task.label.latency

    def step_ended(self, task: Task) -> None:
        """Record a step that ends now, and fill the entries of its results."""
        run, index = task.ongoing.run.state, task.index
        label = task.label
        if self._interference and self._on_devices(task):
            self.at_work[task.ongoing.launch.island] -= 1
        if label is not None:
            start, end = task.start, self.agenda.now
            if task.queues:
                task.ongoing.device_seconds += (end - start) * label.devices
            status = "draining" if run.stopped else "ok"
            row = Row(run.own(label), start, end, run.serial, "simulated", status, BY[task.why])
            if label is not run.compiled_plan.actions[index].label:
                run.recorded[index] = row.label
            run.record.add(row)
        if index not in run.errors:
            run.done[index] = 1
            if index in run.compiled_plan.awaited:
                self._fill(run, index)
        if self._expecting:
            for waiting in self._expecting.pop((run.serial, index), ()):
                self.islands.supply(waiting)

    def may_pass(self, task: Task) -> bool:
        """Return whether nothing has failed, is random, or interferes with others, and no other run waits."""
        run: RunState = task.ongoing.run.state
        hindered = run.stopped or run.errors or self.failures.lost_devices or self.failures.faults
        return not (hindered or self._chance.noise or self._interference or self._expecting)

    def passed(self, task: Task, steps: np.ndarray, times: np.ndarray) -> None:
        """Record launches that pass at once, as ``step_ended`` does each of them."""
        run: RunState = task.ongoing.run.state
        actions = run.compiled_plan.actions
        labels = [actions[index].label for index in steps.tolist()]
        labels = list(map(run.own, labels)) if run.client else labels
        spent = np.diff(times) * labels[0].devices
        task.ongoing.device_seconds = float(np.add.accumulate(np.append(task.ongoing.device_seconds, spent))[-1])
        np.frombuffer(run.done, np.uint8)[steps] = 1
        run.record.add_range(RowRange(labels, times[:-1], times[1:], run.serial, "simulated", "ok", LANE))

    def _fill(self, run: RunState, index: int) -> None:
        """Give the entries of a step's results abstract arrays, and notify waiting threads."""
        plan = run.compiled_plan.plan
        for slot in plan.steps[index].outputs:
            entries = run.results.get(slot, ())
            for entry in entries:
                entry.array = Abstract(run.compiled_plan.result_avals[slot], run.compiled_plan.shardings[slot])
                entry.shared = len(entries) > 1 or plan.steps[index].argument >= 0
        self._filled()

    def _bring(self, run: RunState, task: Task) -> float:
        """Return the seconds of bringing an argument to its place: 0 if it is already there or has no values.

        An argument that other buffers share is copied if the program takes over its memory.
        """
        compiled_plan, step = run.compiled_plan, run.compiled_plan.plan.steps[task.index]
        entry, where = run.arguments[step.argument], compiled_plan.plan.placements[step.place]
        is_there = abstract_places.is_at(entry, compiled_plan, compiled_plan.bring_positions[task.index])
        is_copied = is_there and entry.shared and step.argument in compiled_plan.taken_over
        if (is_there and not is_copied) or (isinstance(entry.array, Abstract) and entry.array.anywhere):
            return 0.0
        if where.is_host and entry.placement is None:
            return 0.0  # it is on the host already
        route, source = _route(entry, where)
        size = compiled_plan.crossing(task.index, None if is_copied else entry.located)
        cost = self.costs.transfer(compiled_plan, task.index, route, entry.located, is_copied)
        label = compiled_plan.actions[task.index].label
        task.label = brought(label, route, size, cost.formula, links_of(route, source, where))
        return cost.seconds


def _route(entry: Entry, where: Placement) -> tuple[str, Placement | None]:
    """Return the route of an argument (``host``, ``ICI`` or ``DCN``) and the devices that it comes from."""
    source = entry.placement
    if source is None:
        return "host", None
    return ("ICI" if source.island == where.island else "DCN"), source
