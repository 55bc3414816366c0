"""How the values that an island's steps bring and move reach its process, and which of its steps this process takes.

A local island has all its values in this process. A host of a cluster takes part in some of its island's steps, and
values of other hosts come as parcels (``hosts.remote_inputs``). Whoever carries out steps asks its ``StepInputs`` and
need not know which of the two it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Any, Protocol

import numpy as np

from pathways_nb.errors import PathwaysError
from pathways_nb.runtime.faults import Fault
from pathways_nb.runtime.lowering.compiled_steps import IslandSteps
from pathways_nb.runtime.run_state import RunState


class Arrival(Protocol):
    """A value that has come from another process."""

    route: str
    """How it came, as in ``Label.route``."""
    bytes: int
    """Bytes that travelled; -1 if that is what the plan says."""
    began: float
    """When the first of it was on its way, in seconds of the clock."""

    def on_devices(self) -> Any:
        """Return it as an array in the layout that the step brings it to."""

    def on_host(self) -> np.ndarray:
        """Return it as a whole."""


OnArrived = Callable[[Arrival | PathwaysError], None]


class StepInputs(Protocol):
    """What differs between an island of this process and a host of a cluster."""

    @property
    def keeps_order(self) -> bool:
        """Whether no transfer may be carried out after steps behind it: other processes launch the same."""

    def steps(self, run: RunState) -> IslandSteps:
        """Return the steps of a run on the island."""

    def is_mine(self, run: RunState, step: int) -> bool:
        """Return whether this process takes part in a step."""

    def faults(self, run: RunState) -> Sized:
        """Return what may make launches of a run fail; it may change while the run goes on."""

    def strike(self, run: RunState, step: int) -> None:
        """Raise if a node is one that is made to fail.

        Raises:
            InjectedFault: it is.
        """

    def is_ready(self, run: RunState, step: int) -> bool:
        """Return whether all that a step reads exists, or never will, or is expected; called by any thread."""

    def has_remote(self, run: RunState) -> bool:
        """Return whether any of a run's arguments may come from another process."""

    def is_remote(self, run: RunState, step: int) -> bool:
        """Return whether what a step brings or moves comes from another process."""

    def expect(self, run: RunState, step: int, arrived: OnArrived) -> None:
        """Call ``arrived`` when a remote value has come or will not come: in any thread, perhaps at once."""

    def substitute(self, run: RunState, step: int, error: PathwaysError) -> Any:
        """Return an array in place of a remote value that will not come, if the run is to go on; else ``None``."""

    def note(self, run: RunState, step: int, arrival: Arrival, start: float, end: float) -> None:
        """Record that a remote value came to the devices from ``start`` to ``end``."""


class LocalInputs:
    """The inputs of an island whose values are all in this process.

    Args:
        island: its index.
        faults: decide which nodes fail.
    """

    keeps_order = False

    def __init__(self, island: int, faults: Sequence[Fault] = ()):
        self._island, self._faults = island, faults

    def steps(self, run: RunState) -> IslandSteps:
        """See ``StepInputs``."""
        return run.compiled_plan.resolved(self._island)

    def is_mine(self, run: RunState, step: int) -> bool:
        """See ``StepInputs``."""
        return True

    def faults(self, run: RunState) -> Sized:
        """See ``StepInputs``."""
        return self._faults

    def strike(self, run: RunState, step: int) -> None:
        """See ``StepInputs``."""
        for fault in self._faults:
            fault.strike(run.compiled_plan.actions[step].label, run.client)

    def is_ready(self, run: RunState, step: int) -> bool:
        """See ``StepInputs``; a wait that has ended is asked until it is removed, and meanwhile its run may finish."""
        action, slots, arguments = run.compiled_plan.actions[step], run.slots, run.arguments
        if run.finished:  # asked last: both were there, or the run has dropped them
            return True
        if action.step.kind == "bring":
            entry = arguments[action.step.argument]
            exists = entry.array is not None or entry.error is not None
            taken_over = action.step.argument in run.compiled_plan.taken_over
            return run.stopped or (exists and not (taken_over and run.is_read_by_others(step)))
        for slot in action.step.inputs:
            if slots[slot] is None:
                return run.stopped or any(producer in run.errors for producer in action.step.producers)
        return True

    def has_remote(self, run: RunState) -> bool:
        """See ``StepInputs``."""
        return False

    def is_remote(self, run: RunState, step: int) -> bool:
        """See ``StepInputs``."""
        return False

    def expect(self, run: RunState, step: int, arrived: OnArrived) -> None:
        """See ``StepInputs``; there is no remote value."""
        raise AssertionError(f"step {step} of {run.compiled_plan.name} brings a value of this process")

    def substitute(self, run: RunState, step: int, error: PathwaysError) -> Any:
        """See ``StepInputs``."""
        return None

    def note(self, run: RunState, step: int, arrival: Arrival, start: float, end: float) -> None:
        """See ``StepInputs``; there is no remote value."""
        raise AssertionError(f"step {step} of {run.compiled_plan.name} brings a value of this process")
