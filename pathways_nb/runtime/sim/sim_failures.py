"""Simulated steps that are not carried out: cancelled, without an input, on lost devices, or failed on purpose.

The rules are those of real islands (see ``local.step_runner``), where a launch that is tried fails by itself: a failed
step has no outputs, and every step that depends on it fails with the same error. Here nothing is run that could fail,
so each step is checked before it begins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from pathways_nb.errors import LostError
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.faults import Fault, InjectedFault, check_devices
from pathways_nb.runtime.run_state import RunState
from pathways_nb.trace.rows import Label, Row


class Failures:
    """The lost devices and injected faults of one controller, and the steps that fail because of them.

    Args:
        faults: the faults that are active; the owner changes this list.
        clock: returns simulated seconds.
    """

    def __init__(self, faults: Sequence[Fault], clock: Callable[[], float]):
        self.faults, self.clock = faults, clock
        self.lost_devices: defaultdict[int, set[int]] = defaultdict(set)
        """By island: the lost devices."""

    def lose(self, where: Placement) -> None:
        """Make every step fail that begins on these devices from now on."""
        self.lost_devices[where.island] |= set(range(where.first, where.first + where.count))

    def restore(self, island: int) -> None:
        """Let all devices of an island run steps again."""
        self.lost_devices.pop(island, None)

    def stop(self, run: RunState, index: int, label: Label) -> bool:
        """Return whether a step that is about to begin is not carried out, and record the reason in its run.

        Args:
            run: its run.
            index: of the step in its plan.
            label: of the step in the record.
        """
        if (run.stopped or run.errors) and self._is_given_up(run, index):
            return True
        if run.compiled_plan.plan.steps[index].argument >= 0 and self._is_missing(run, index):
            return True
        return bool(self.lost_devices or self.faults) and self._is_struck(run, index, label)

    def _is_given_up(self, run: RunState, index: int) -> bool:
        """Return whether the run was cancelled, or an input of the step will never exist."""
        error = run.reason_to_skip(index)
        if error is not None:
            run.fail(index, error)
        return error is not None

    def _is_missing(self, run: RunState, index: int) -> bool:
        """Return whether the argument that a step brings has failed."""
        step = run.compiled_plan.plan.steps[index]
        entry = run.arguments[step.argument]
        if entry.error is not None:
            run.fail(index, entry.error)
        entry.shared |= any(slot in run.results for slot in step.outputs)  # the run returns the argument itself
        return entry.error is not None

    def _is_struck(self, run: RunState, index: int, label: Label) -> bool:
        """Return whether a step fails because its devices are lost or a fault was injected, and record the failure."""
        try:
            check_devices(label, self.lost_devices.get(label.island, ()))
            for fault in self.faults if label.kind != "transfer" else ():
                fault.strike(label, run.client)
        except (InjectedFault, LostError) as cause:
            now = self.clock()
            run.record.add(Row(run.own(label), now, now, run.serial, "simulated", "failed"))
            run.fail(index, run.node_error(index, cause))
            return True
        return False
