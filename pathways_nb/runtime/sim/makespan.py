"""The makespan of a program by the controller's own core on a simulated clock, given the seconds of each node.

``pw.predict`` uses it. Because the core decides, the order and dispatch mode are those of a real run. Only nodes and
the controller's messages take time; transfers of values take none, and hosts enqueue in no time. ``SimDriver``
simulates those too, with durations from the cost model.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from pathways_nb.controller.controller_state import Dispatch
from pathways_nb.controller.events_and_instructions import Completed, Event, Instruction, Launch, Submitted
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.plan.plan import Plan
from pathways_nb.runtime.sim.simulated_islands import Islands, OngoingLaunch, Task, VirtualRun
from pathways_nb.runtime.sim.timed_plan import TimedPlan
from pathways_nb.timing.event_queue import EventQueue


class MakespanSimulator:
    """A controller on islands whose hosts and links take no time.

    Args:
        machine: the controller's pure core.
        seconds: duration of each node in seconds, by its id.
        dcn_latency: seconds that a message of the controller takes to an island.
    """

    def __init__(self, machine: StateMachine, seconds: Mapping[int, float], dcn_latency: float = 0.0):
        self.machine, self.seconds, self.dcn_latency = machine, seconds, dcn_latency
        self.agenda = EventQueue()
        self._islands = Islands(self.agenda, self)
        self._runs: dict[int, VirtualRun] = {}

    def submit(self, plan: Plan) -> None:
        """Submit a run of a plan at the current time."""
        runs = ("launch", "host")
        lasts = [self.seconds[step.node] if step.kind in runs else 0.0 for step in plan.steps]
        serial = len(self._runs)
        self._runs[serial] = VirtualRun(serial, TimedPlan(plan, lasts))
        self._tell(Submitted(serial, "", plan, (), (), ()))

    def run(self) -> float:
        """Advance time until nothing is under way, and return the seconds since the start."""
        self.agenda.run()
        return self.agenda.now

    def _tell(self, event: Event) -> None:
        """Let the core handle an event, and carry out the launches that it answers with."""
        for instruction in self.machine.handle(event, self.agenda.now):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        """Send a launch to its island; what else the core says takes no time."""
        if isinstance(instruction, Launch):
            arrives = self.agenda.now + self.dcn_latency
            self.agenda.at(arrives, self._islands.arrive, self._runs[instruction.run], instruction)

    # ---- ``IslandsOwner`` of the islands

    def prepared(self, task: Task) -> int:
        """Return 0: all arguments exist."""
        return 0

    def lasts(self, task: Task) -> float:
        """Return the seconds that were given for the step's node; 0 for a transfer."""
        return task.ongoing.run.timed.seconds[task.index]

    def link(self, task: Task) -> tuple[Sequence[Hashable], float]:
        """Return a link that no other transfer uses, so that transfers never wait for each other."""
        return (task,), 0.0

    def step_ended(self, task: Task) -> None:
        """Add the step's device time to its launch."""
        timed = task.ongoing.run.timed
        step = timed.plan.steps[task.index]
        task.ongoing.device_seconds += timed.seconds[task.index] * timed.plan.placements[step.place].count

    def may_pass(self, task: Task) -> bool:
        """Return ``True``: nothing can fail."""
        return True

    def passed(self, task: Task, steps: np.ndarray, times: np.ndarray) -> None:
        """Add the steps' device time to their launch."""
        timed = task.ongoing.run.timed
        spent = np.array([timed.seconds[step] for step in steps.tolist()])
        spent *= timed.plan.placements[timed.plan.steps[task.index].place].count
        task.ongoing.device_seconds = float(np.add.accumulate(np.append(task.ongoing.device_seconds, spent))[-1])

    def launch_ended(self, ongoing: OngoingLaunch) -> None:
        """Report the completion of a launch to the core."""
        launch = ongoing.launch
        self._tell(Completed(launch.run, launch.island, launch.start, launch.stop, ongoing.device_seconds))


def makespan(plan: Plan, seconds: Mapping[int, float], dispatch: Dispatch, dcn_latency: float = 0.0) -> float:
    """Return the seconds from the call of a program to the end of its last node.

    Args:
        plan: the program with its placements.
        seconds: duration of each node in seconds, by its id.
        dispatch: ``"parallel"`` or ``"sequential"`` (Pathways, section 4.5).
        dcn_latency: seconds that a message of the controller takes to an island.
    """
    sizes: dict[int, int] = {}
    for placement in plan.placements.values():
        sizes[placement.island] = max(sizes.get(placement.island, 1), placement.first + placement.count)
    devices = tuple(sizes.get(island, 1) for island in range(max(plan.islands, default=0) + 1))
    clockwork = MakespanSimulator(StateMachine(dispatch, devices=devices), seconds, dcn_latency)
    clockwork.submit(plan)
    return clockwork.run()
