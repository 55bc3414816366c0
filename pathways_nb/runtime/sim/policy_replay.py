"""What another policy would have decided on the calls of a run, by the controller's own core on a simulated clock.

Clients call at the recorded times, whatever the policy does: one that would have called earlier, since its result came
earlier, does not. Computations take the time that was recorded for them; transfers and enqueues take none, so the
recorded policy is simulated, too, and both are compared with each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from pathways_nb.controller.decisions import WatchedCore
from pathways_nb.controller.events_and_instructions import (
    Completed,
    Event,
    Fail,
    Finish,
    Instruction,
    Launch,
    PutRequested,
    Skip,
    Submitted,
    Voided,
    Wake,
    Woke,
)
from pathways_nb.controller.log import Log, LoggedEvent
from pathways_nb.controller.policies import PROGRAMS_FAILED, Policy, keeps_order
from pathways_nb.errors import PolicyError, UsageError
from pathways_nb.plan.plan import Plan
from pathways_nb.runtime.sim.makespan import MakespanSimulator
from pathways_nb.runtime.sim.simulated_islands import Task, VirtualRun
from pathways_nb.runtime.sim.timed_plan import TimedPlan
from pathways_nb.trace.metrics import duration
from pathways_nb.trace.rows import HOST_KIND, Label, Row

NodeSeconds = Callable[[int, int], float | None]
"""Returns how long a node of a call took, by the call's serial and the node's id; ``None`` if that is not recorded."""


class ReplayedCalls(MakespanSimulator):
    """A core that is given a log's calls at their times, on islands whose nodes take recorded seconds.

    Args:
        log: of a recording.
        seconds: how long nodes took.
        policy: what decides; None for the policy of the recording.
        began: when the recording began, in seconds of the controller's clock.

    Raises:
        UsageError: the log cannot be played again, clients waited for memory for values that they put, or another
            policy failed.
    """

    def __init__(self, log: Log, seconds: NodeSeconds, policy: Policy | None, began: float):
        if log.why_not:
            raise UsageError(f"replay(policy=): this log cannot be played again: {log.why_not}.")
        core, _ = WatchedCore.at_beginning(log, began)
        super().__init__(core, {})
        if policy is not None:
            core.policy, core.in_order = policy, keeps_order(policy)
        entries = log.entries[log.before :]
        self._seconds, self._shares = seconds, _shares(entries, core)
        self.ends: dict[int, float] = {}
        """By serial, when each call ended that was carried out whole."""
        self.called: dict[int, tuple[str, str]] = {}
        """By serial, program and client of the recording's own calls."""
        self._makers: dict[int, tuple[VirtualRun, int]] = {}
        self._arguments: dict[int, tuple[int, ...]] = {}
        self._expecting: defaultdict[tuple[int, int], list[Task]] = defaultdict(list)
        self._skipped: set[int] = set()
        self._failed: set[int] = set()
        """Calls of which nodes failed in the recording."""
        self._untimed: set[tuple[int, int]] = set()
        """Steps of which the recording has no time, by call and index."""
        self.rows: list[Row] = []
        """What was carried out on devices and hosts, in seconds since the recording began."""
        self._labels: dict[tuple[int, int], Label] = {}
        self._is_other, self._began = policy is not None, began
        # The beginning of a long recording may be forgotten: then time begins with what is left.
        self.agenda.now = entries[0].now if log.missing and entries else began
        self._take_up(core, entries)
        for entry in entries:
            if not isinstance(entry.event, Completed | Woke):
                self.agenda.at(entry.now, self._happens, entry.event)
        self.run()
        for serial in self._failed | self._skipped:
            self.ends.pop(serial, None)
        self.untimed = sum(
            serial not in self._skipped and self._runs[serial].done[step] for serial, step in self._untimed
        )
        self.decisions = core.found

    def _take_up(self, core: WatchedCore, entries: Sequence[LoggedEvent]) -> None:
        """Let what is under way when the recording begins go on, with the time that it still took."""
        for request in core.put_requests.waiting.values():
            self._refuse(request.event)
        for call in core.calls.values():
            run = self._begin(call.submitted)
            for island, order in call.plan.orders.items():
                for step in order[: call.done[island]]:
                    run.done[step] = 1
                    self._untimed.discard((call.submitted.run, step))
        ended_at = {(e.run, e.island, e.stop): now for now, e, _ in entries if isinstance(e, Completed)}
        launches: list[Launch] = []
        for island, queue in core.queues.items():
            starts = {serial: core.calls[serial].done[island] for serial, _ in queue.in_flight}
            for serial, stop in queue.in_flight:
                ended = core.calls[serial].ended.get(island, {})
                while starts[serial] in ended:
                    starts[serial] = ended[starts[serial]]
                launch = Launch(serial, island, starts[serial], stop)
                launches.append(launch)
                starts[serial] = stop
                if (end := ended_at.get((serial, island, stop))) is not None:
                    self._shorten(launch, end - self.agenda.now)
        for launch in launches:
            self._carry_out(launch)
        if core.wake_at is not None:
            self._carry_out(Wake(core.wake_at))

    def _shorten(self, launch: Launch, left: float) -> None:
        """Scale the seconds of a launch that is under way, so that its steps take no more than what is left of it."""
        run = self._runs[launch.run]
        seconds = list(run.timed.seconds)
        steps = run.timed.plan.orders[launch.island][launch.start : launch.stop]
        lasts = sum(seconds[step] for step in steps)
        if lasts > left:
            for step in steps:
                seconds[step] *= max(left, 0.0) / lasts
            run.timed = TimedPlan(run.timed.plan, seconds)

    def _begin(self, event: Submitted) -> VirtualRun:
        plan = event.plan
        timed = TimedPlan(plan, [self._step_seconds(event.run, plan, step) for step in range(len(plan.steps))])
        run = self._runs[event.run] = VirtualRun(event.run, timed)
        maker = {slot: index for index, step in enumerate(plan.steps) for slot in step.outputs}
        for buffer, slot in zip(event.results, plan.results, strict=True):
            self._makers[buffer] = run, maker[slot]
        self._arguments[event.run] = event.arguments
        return run

    def _step_seconds(self, serial: int, plan: Plan, index: int) -> float:
        step = plan.steps[index]
        if step.kind not in ("launch", "host"):
            return 0.0
        if (recorded := self._seconds(serial, step.node)) is not None:
            return recorded
        if (serial, index) not in self._shares:
            self._untimed.add((serial, index))
        return self._shares.get((serial, index), 0.0)

    def _refuse(self, put: PutRequested) -> None:
        """Refuse a value that waited for memory, in the recording or when it began."""
        raise UsageError(
            f"replay(policy=): {put.name} waited for memory when it was put, and under another policy it would wait "
            f"for another time, with the calls that read it. Record without hbm=."
        )

    def _happens(self, event: Event) -> None:
        if isinstance(event, PutRequested) and self.machine.memory.limited:
            self._refuse(event)
        if isinstance(event, Submitted):
            self._begin(event)
            self.called[event.run] = event.plan.graph.name, event.client
        if isinstance(event, Voided):
            self._failed.update(self._makers[one][0].serial for one in event.buffers if one in self._makers)
        self._tell(event)

    def _carry_out(self, instruction: Instruction) -> None:
        """Launch, wake, skip, or note the end of a call."""
        match instruction:
            case Wake(at):
                self.agenda.at(at, self._tell, Woke())
            case Fail(_, PolicyError() as error) if self._is_other:
                # Calls that failed would count as ended, and the policy that fails most as the fastest.
                said = str(error).removesuffix(PROGRAMS_FAILED)
                raise UsageError(f"replay(policy=): after {duration(self.agenda.now - self._began)}, {said}") from error
            case Skip(run) | Fail(run):
                self._skipped.add(run)
            case Finish(run):
                if run in self.called:
                    self.ends[run] = self.agenda.now
            case _:
                super()._carry_out(instruction)

    # ---- ``IslandsOwner`` of the islands

    def prepared(self, task: Task) -> int:
        """Return 1 if a task brings a result of another call that is not computed yet, else 0."""
        run = task.ongoing.run
        position, arguments = run.timed.plan.steps[task.index].argument, self._arguments[run.serial]
        # The core has dropped arguments of a call that failed since their owner had closed.
        if not 0 <= position < len(arguments):
            return 0
        made = self._makers.get(arguments[position])
        if made is None or made[0].done[made[1]]:
            return 0
        self._expecting[made[0].serial, made[1]].append(task)
        return 1

    def lasts(self, task: Task) -> float:
        """Return the seconds of a step; 0 of one that is skipped."""
        return 0.0 if task.ongoing.run.serial in self._skipped else super().lasts(task)

    def step_ended(self, task: Task) -> None:
        """Add the step's device time to its launch, and let go on what waited for it."""
        super().step_ended(task)
        self._note(task.ongoing.run, task.index, task.start, self.agenda.now)
        for waiting in self._expecting.pop((task.ongoing.run.serial, task.index), ()):
            self._islands.supply(waiting)

    def may_pass(self, task: Task) -> bool:
        """Return whether no other call waits for a step, and none is skipped."""
        return not (self._expecting or self._skipped)

    def passed(self, task: Task, steps: np.ndarray, times: np.ndarray) -> None:
        """Add the steps' device time to their launch."""
        super().passed(task, steps, times)
        for step, start, end in zip(steps.tolist(), times[:-1].tolist(), times[1:].tolist(), strict=True):
            self._note(task.ongoing.run, step, start, end)

    def _note(self, run: VirtualRun, index: int, start: float, end: float) -> None:
        """Keep when a node was carried out."""
        plan = run.timed.plan
        step, (program, client) = plan.steps[index], self.called.get(run.serial, (plan.graph.name, ""))
        if step.kind not in ("launch", "host") or run.serial in self._skipped:
            return
        label = self._labels.get((run.serial, index))
        if label is None:
            at, name = plan.placements[step.place], plan.graph.names.get(step.node, "")
            kind = HOST_KIND if step.on_host else "compute"
            label = Label(
                kind, name, program, client, step.node, island=at.island, device=at.first, devices=at.count
            )  # fmt: skip
            self._labels[run.serial, index] = label
        self.rows.append(Row(label, start - self._began, end - self._began, run.serial, "simulated"))


def _shares(entries: Sequence[LoggedEvent], core: WatchedCore) -> dict[tuple[int, int], float]:
    """Return an equal share of a range's recorded device-seconds for each of its steps, by call and step."""
    plans: dict[int, Plan] = {serial: call.plan for serial, call in core.calls.items()}
    found: dict[tuple[int, int], float] = {}
    for entry in entries:
        event = entry.event
        if isinstance(event, Submitted):
            plans[event.run] = event.plan
        elif isinstance(event, Completed) and (plan := plans.get(event.run)) is not None:
            mine: Sequence[int] = [
                step
                for step in plan.orders[event.island][event.start : event.stop]
                if plan.steps[step].kind in ("launch", "host")
            ]
            devices = sum(plan.placements[plan.steps[step].place].count for step in mine)
            # None of a range that was skipped: nothing of it was carried out.
            share = event.device_seconds / devices if devices else 0.0
            found.update(((event.run, step), share) for step in mine if share)
    return found
