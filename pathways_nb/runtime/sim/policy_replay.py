"""What another policy would have decided on the calls of a run, by the controller's own core on a simulated clock.

Clients call at the recorded times, whatever the policy does: one that would have called earlier, since its result came
earlier, does not. Computations take the time that was recorded for them; transfers and enqueues take none, so the
recorded policy is simulated, too, and both are compared with each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from pathways_nb.controller.decisions import Decision, WatchedCore
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
from pathways_nb.plan.call_numbers import call_number
from pathways_nb.plan.plan import Plan
from pathways_nb.runtime.sim.makespan import MakespanSimulator
from pathways_nb.runtime.sim.simulated_islands import Task, VirtualRun
from pathways_nb.runtime.sim.timed_plan import TimedPlan
from pathways_nb.util.words import counted

NodeSeconds = Callable[[int, int], float | None]
"""Returns how long a node of a call took, by the call's serial and the node's id; ``None`` if that is not recorded."""


class Ends(NamedTuple):
    """When one call ended, in seconds since the recording began.

    Args:
        program: its name.
        client: who called it.
        recorded_policy: under the policy of the recording, simulated.
        other_policy: under the other.
    """

    program: str
    client: str
    recorded_policy: float
    other_policy: float


@dataclass(frozen=True)
class PolicyReplay:
    """What two policies decide on the same calls.

    Args:
        names: of the recorded policy and of the other.
        decisions: of the recorded policy.
        others: of the other policy.
        ends: by call number, of the calls that neither failed nor were cancelled, under either policy.
        missing: number of the recording's first events that its log has forgotten; calls made then have no end here.
        untimed: how often a node is carried out here that was not in the recording; it takes no time.
    """

    names: tuple[str, str]
    decisions: tuple[Decision, ...]
    others: tuple[Decision, ...]
    ends: dict[int, Ends]
    missing: int = 0
    untimed: int = 0

    @property
    def first_difference(self) -> tuple[Decision | None, Decision | None] | None:
        """The first decision of each that differs in what is enqueued; ``None`` if none does."""
        pairs = zip_longest(self.decisions, self.others)
        return next((pair for pair in pairs if _enqueued(pair[0]) != _enqueued(pair[1])), None)

    @property
    def seconds(self) -> tuple[float, float]:
        """When the last call ends, under each."""
        kept = self.ends.values()
        return max((e.recorded_policy for e in kept), default=0.0), max((e.other_policy for e in kept), default=0.0)

    def mean_end(self, client: str) -> tuple[float, float]:
        """Return when a client's calls end on average, under each policy, in seconds since the recording began.

        Raises:
            UsageError: it made no call.
        """
        of_client = [ends for ends in self.ends.values() if ends.client == client]
        if not of_client:
            made = ", ".join(sorted({repr(ends.client) for ends in self.ends.values()})) or "nobody"
            raise UsageError(f"mean_end({client!r}): no such client called; {made} did.")
        befores, afters = zip(*((ends.recorded_policy, ends.other_policy) for ends in of_client), strict=True)
        return sum(befores) / len(befores), sum(afters) / len(afters)

    def __str__(self) -> str:
        one, other = self.names
        ends = "the last call ends after {:.6f} s under {}, {:.6f} s under {} (both simulated)"
        before, after = self.seconds
        lines = [ends.format(before, one, after, other)]
        if self.missing:
            lines.append(f"  without the first {counted(self.missing, 'event')} of the recording, which are forgotten")
        if self.untimed:
            lines.append(f"  {counted(self.untimed, 'node')} took no time here, since the recording has none of them")
        for client in sorted({ends.client for ends in self.ends.values()}):
            was, becomes = self.mean_end(client)
            lines.append(f"  {client or 'no client'}: on average after {was:.6f} s and {becomes:.6f} s")
        if self.first_difference is None:
            return "\n".join([*lines, "no decision differs"])
        for name, decision in zip(self.names, self.first_difference, strict=True):
            said = str(decision).partition("\n")[0] if decision else "no more decisions"
            lines.append(f"first difference, {name}: {said}")
        return "\n".join(lines)


def replayed(log: Log, seconds: NodeSeconds, policy: Policy, names: tuple[str, str], began: float) -> PolicyReplay:
    """Return what the recorded policy and another one decide on a log's calls.

    Args:
        log: of a recording.
        seconds: how long nodes took.
        policy: the other policy.
        names: of both, in words.
        began: when the recording began, in seconds of the controller's clock.

    Raises:
        UsageError: the log cannot be played again, clients waited for memory for values that they put, or the other
            policy failed.
    """
    if log.why_not:
        raise UsageError(f"replay(policy=): this log cannot be played again: {log.why_not}.")
    recorded, other = (_LoggedCalls(log, seconds, one, began) for one in (None, policy))
    ends = {
        call_number(serial): Ends(*recorded.called[serial], end - began, other.ends[serial] - began)
        for serial, end in recorded.ends.items()
        if serial in other.ends
    }
    both = tuple(recorded.decisions), tuple(other.decisions)
    return PolicyReplay(names, *both, ends, log.missing, max(recorded.untimed, other.untimed))


class _LoggedCalls(MakespanSimulator):
    """A core that is given a log's calls at their times, on islands whose nodes take recorded seconds."""

    def __init__(self, log: Log, seconds: NodeSeconds, policy: Policy | None, began: float):
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
                raise UsageError(f"replay(policy=): after {self.agenda.now - self._began:.6f} s, {said}") from error
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
        for waiting in self._expecting.pop((task.ongoing.run.serial, task.index), ()):
            self._islands.supply(waiting)

    def may_pass(self, task: Task) -> bool:
        """Return whether no other call waits for a step, and none is skipped."""
        return not (self._expecting or self._skipped)


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


def _enqueued(decision: Decision | None) -> object:
    return decision and (decision.call, decision.enqueued)
