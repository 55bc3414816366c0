"""What a launch of a step takes on simulated chips: what its plan's timeline says.

The timeline knows which exchange is hidden by what, what is freed within the step, and which operations are one kernel.
An estimate of the launch from its code alone knows none of these. Where the chip's own compiler is there, the launch
takes what the compiled program takes, and a line says what the plan had said.
"""

from __future__ import annotations

from typing import Any, Literal

from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.launch.opened_launch import OpenedLaunch
from pathways_nb.cost.model import CostModel
from pathways_nb.errors import size
from pathways_nb.parallel.fsdp.step_functions import StepFunctions
from pathways_nb.parallel.fsdp.step_planner import Planner
from pathways_nb.parallel.fsdp.step_program import Form
from pathways_nb.program.declared_cost import DeclaredLaunch, LaunchPlan
from pathways_nb.trace.metrics import duration

_PLANNERS = 4
"""Planners of a step that are stored."""


def planner_of(
    functions: StepFunctions, form: Form, batch: Any, model: CostModel, topology: Topology | None = None,
    streams: Literal[2, 3] = 2,
) -> Planner:  # fmt: skip
    """Return what plans one of a step's computations; a call and a timeline share it, and the costs that it has found.

    Args:
        functions: of the step.
        form: ``"step"``, or ``"value_and_grad"`` without the optimizer's state and update.
        batch: shapes of a whole batch.
        model: the cost model of a chip.
        topology: of the island; ``None`` for one of as many devices as the place.
        streams: as for ``FsdpStep.planner``.
    """
    spec, traced, known = functions.spec, functions.traced(batch), functions.planners
    key = form, traced, model, topology, streams
    found = known.pop(key, None)
    if found is None:
        held, update = (spec.state_bytes, spec.update) if form == "step" else (0, None)
        found = Planner(traced, spec.mode, model, spec.sizes, held, streams, spec.name, None, update, topology)
    known[key] = found  # inserted last: the first key is the least recently used
    while len(known) > _PLANNERS:
        known.pop(next(iter(known)), None)
    return found


class StepLaunch(LaunchPlan):
    """A launch of one of a step's computations.

    Args:
        functions: of the step.
        form: which computation it is.
        batch: shapes of a whole batch.
    """

    def __init__(self, functions: StepFunctions, form: Form, batch: Any):
        self._functions, self._form, self._batch = functions, form, batch

    def launch(self, model: CostModel, topology: Topology) -> DeclaredLaunch:
        """See ``LaunchPlan``."""
        planner = planner_of(self._functions, self._form, self._batch, model, topology)
        opened = planner.timeline(self._functions.plan).opened
        return DeclaredLaunch(opened, planner.costs.flops + planner.costs.of_update.flops)

    def beside(self, compiled: OpenedLaunch, planned: OpenedLaunch) -> str:
        """See ``LaunchPlan``."""
        line = (
            f"compiled {_figures(compiled)}, planned {_figures(planned)}: a plan says where exchanges begin, and has "
            "kernels as one operation; the compiler schedules, fuses and stores by its own rules"
        )
        self._functions.compared = line
        return line


def _figures(launch: OpenedLaunch) -> str:
    """Return seconds and memory of a launch, in words."""
    memory = "" if launch.memory is None else f" and {size(launch.memory.peak)}"
    return f"{duration(launch.seconds.ordered)}{memory}"
