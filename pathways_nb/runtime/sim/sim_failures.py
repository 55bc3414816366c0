"""Which simulated steps are not carried out: given up, cut off from an input, on lost devices, struck on purpose.

The rules are those of real islands (see ``dispatcher``), where they are found out by trying: what fails has no outputs,
and all that depends on it fails with the same error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from pathways_nb.errors import LostError
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.faults import Fault, InjectedFault, check_devices
from pathways_nb.runtime.local.watcher import owned
from pathways_nb.runtime.run_state import Execution
from pathways_nb.trace.record import Label, Row


class Failures:
    """What is lost, and what fails because of it or on purpose.

    Args:
        faults: launches that are to fail, as they are now. clock: virtual seconds.
    """

    def __init__(self, faults: Sequence[Fault], clock: Callable[[], float]):
        self.faults, self.clock = faults, clock
        self.gone: defaultdict[int, set[int]] = defaultdict(set)
        """By island: devices that were lost."""

    def lose(self, where: Placement) -> None:
        """From now on nothing can run on these devices."""
        self.gone[where.island] |= set(range(where.first, where.first + where.count))

    def restore(self, island: int) -> None:
        """An island's devices are there again."""
        self.gone.pop(island, None)

    def stop(self, run: Execution, index: int, label: Label) -> bool:
        """Whether a step that is about to begin is not carried out; then its run knows why."""
        if (run.stopped or run.errors) and self._is_given_up(run, index):
            return True
        if run.compiled_plan.plan.steps[index].argument >= 0 and self._is_missing(run, index):
            return True
        return bool(self.gone or self.faults) and self._is_struck(run, index, label)

    def _is_given_up(self, run: Execution, index: int) -> bool:
        """Whether its run was cancelled, or an input will never come."""
        error = run.reason_to_skip(index)
        if error is not None:
            step = run.compiled_plan.plan.steps[index]
            if step.argument >= 0:
                run.arguments[step.argument].has_read()
            run.fail(index, error)
        return error is not None

    def _is_missing(self, run: Execution, index: int) -> bool:
        """Whether the argument that a step brings, which it reads now, never came to be."""
        step = run.compiled_plan.plan.steps[index]
        entry = run.arguments[step.argument]
        entry.has_read()
        if entry.error is not None:
            run.fail(index, entry.error)
        entry.shared |= any(slot in run.results for slot in step.outputs)  # it is handed back as it came
        return entry.error is not None

    def _is_struck(self, run: Execution, index: int, label: Label) -> bool:
        """Whether a step fails because its devices are lost, or on purpose."""
        try:
            check_devices(label, self.gone.get(label.island, ()))
            for fault in self.faults if label.kind != "transfer" else ():
                fault.strike(label, run.client)
        except (InjectedFault, LostError) as cause:
            mine, now = owned(label, run.client) if run.client else label, self.clock()
            run.record.add(Row(mine, now, now, run.serial, "simulated", "failed"))
            run.fail(index, run.node_error(index, cause))
            return True
        return False
