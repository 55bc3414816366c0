"""Why the controller sends a launch: what it was told when it decided so."""

from __future__ import annotations

from collections.abc import Mapping

from pathways_nb.controller.messages import Completed, Event, Launch, Submitted, Waited
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.runtime.run_state import Execution
from pathways_nb.timing.waits import CALL, DATA, MEMORY, TURN
from pathways_nb.trace.rows import Cause, Label

_CALLED, _ITS_TURN = Cause(CALL), Cause(TURN)


class LaunchCauses:
    """Tells the cause of each launch; used by the thread in which the core decides.

    Args:
        runs: those under way, by serial number.
        machine: the core, which decides.
    """

    def __init__(self, runs: Mapping[int, Execution], machine: StateMachine):
        self._runs, self._machine = runs, machine
        self._for_memory: set[int] = set()
        """Runs that waited for memory and have not been launched since."""
        self._last: tuple[Event | None, Label | None] = None, None
        """An event that ended a run, and the label of what ended then."""

    def waited(self, instruction: Waited) -> None:
        """Note why a run was held back."""
        if "memory" in instruction.reason:
            self._for_memory.add(instruction.run)

    def finished(self, run: Execution, event: Event | None) -> None:
        """Note a run that ends by an event, before it is forgotten."""
        self._for_memory.discard(run.serial)
        if isinstance(event, Completed) and event.run == run.serial:
            self._last = event, self._label(run, event)

    def of(self, launch: Launch, event: Event | None) -> Cause:
        """Return why a launch is sent while an event is handled."""
        why = TURN
        if launch.run in self._for_memory:
            self._for_memory.discard(launch.run)
            why = MEMORY
        match event:
            case Submitted(run) if run == launch.run:
                return _CALLED
            case Completed(run):
                known = self._runs.get(run)
                label = self._last[1] if event is self._last[0] or known is None else self._label(known, event)
                own = run == launch.run and self._machine.dispatch == "sequential"
                return Cause(DATA if own else why, label, run)
        return _ITS_TURN if why == TURN else Cause(why)

    def _label(self, run: Execution, event: Completed) -> Label | None:
        """Return the label of the last computation of a range, which is mostly what ended last."""
        plan = run.compiled_plan.plan
        for step in reversed(plan.orders[event.island][event.start : event.stop]):
            if plan.steps[step].kind in ("launch", "host"):
                return run.label(step)
        return None
