"""One step in other modes, on other numbers of devices and other networks: what the explorer plans and times.

Nothing is traced or read twice: what the loss computes is the same everywhere. Each device keeps as large a part of the
batch as it was traced with, so the whole batch grows with the number of devices (weak scaling).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from pathways_nb.cost.model import CostModel
from pathways_nb.parallel.fsdp import plans
from pathways_nb.parallel.fsdp.fsdp_plan import FsdpPlan
from pathways_nb.parallel.fsdp.modes import MODES
from pathways_nb.parallel.fsdp.passes.plan_passes import text_of_passes
from pathways_nb.parallel.fsdp.plan_text import text_of_plan
from pathways_nb.parallel.fsdp.sharded_scan import ShardedScan
from pathways_nb.parallel.fsdp.step import FsdpStep
from pathways_nb.parallel.fsdp.step_graph import StepGraph
from pathways_nb.parallel.fsdp.step_planner import Planner
from pathways_nb.parallel.fsdp.step_work import StepWork, gathered_params

_NO_TIME = 1e-12
"""Seconds of a hop in a network whose latency is that of a whole collective."""


class Passed(NamedTuple):
    """A step under a plan: as it is run, and its schedule before and after each pass."""

    graph: StepGraph
    lines: tuple[tuple[str, str], ...]


class Variants:
    """A step in other modes and on other devices.

    Args:
        step: the step.
        batch: arrays or shapes of a whole batch; as for ``FsdpStep.planner``.
        chip: as for ``FsdpStep.planner``.

    Raises:
        UsageError: no batch or no chip is known.
    """

    def __init__(self, step: FsdpStep, batch: Sequence[Any] | None = None, chip: Any = None):
        first = step.planner(batch, chip)
        self.step, self.model, self.sizes = step, first.model, dict(first.sizes)
        self.devices = first.mode.axes.size
        parts = (first.traced.flat.avals[value].str_short() for value in first.traced.batch)
        self.batch_words = " and ".join(dict.fromkeys(parts))
        # By the parameters that are gathered: between such steps the work of the loss is the same (``carried_to``).
        self._work = {gathered_params(first.traced): (StepWork.of(first.traced, first.sizes), first)}
        # On the instance, not on the class: a cache of the class would keep every step alive.
        self.at = lru_cache(8)(self._at)
        for mode in ("ddp", "zero3"):  # of other modes, only exchanges differ from these
            self.at(mode, self.devices)

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes to choose from: hybrid sharding where the place has two axes and both split the batch."""
        two = len(self.sizes) == 2 and not any(one.others for one in self.step.parameters)
        return MODES if two else tuple(mode for mode in MODES if mode != "hsdp")

    def _at(self, mode: str, devices: int) -> Variant:
        """Return the step in a mode on a number of devices."""
        planner = self.step.elsewhere(mode, devices).planner(chip=self.model)
        kind = gathered_params(planner.traced)
        if kind not in self._work:
            self._work[kind] = StepWork.of(planner.traced, planner.sizes), planner
        work, before = self._work[kind]
        return Variant(replace(planner, work=work.carried_to(planner.traced, before.traced, planner.sizes)))


class Variant:
    """A step in one mode on one number of devices.

    Args:
        planner: of the step on any chip.
    """

    def __init__(self, planner: Planner):
        self._any = planner
        self.mode, self.sizes, self.parameters = planner.mode, planner.sizes, planner.traced.parameters
        self.names = [one.name for one in self.parameters]
        self.scans = any(isinstance(op, ShardedScan) for op in planner.traced.ops)
        # A planner of another chip has costs of its own, which take long to find: a slider that moves back finds them.
        self.planner = lru_cache(4)(lambda model: replace(planner, model=model))
        self.passed = lru_cache(8)(self._passed)

    def text(self, plan: FsdpPlan) -> str:
        """Return the buckets of a plan as text; the mode or the explorer says that all are kept, and its passes."""
        every = all(bucket.keep for bucket in plan.buckets)
        return text_of_plan(replace(plan.keeping(False) if every else plan, passes=()), self.names)

    def choices_of(self, plan: FsdpPlan) -> dict[str, Any]:
        """Return the explorer's choices that give a plan."""
        again = self.mode.gathers_again
        keep = again and all(bucket.keep for bucket in plan.buckets)
        found: dict[str, Any] = {"prefetch": plan.prefetch, "keep": keep, "passes": text_of_passes(plan.passes)}
        # One choice says what is kept only if all buckets are alike in that, or the mode never gathers again.
        alike = keep or not (again and plan.kept)
        for name, make in (("per block", plans.per_block), ("per parameter", plans.per_parameter)):
            made = make(self.parameters, self.mode)
            if alike and (made.keeping(True).buckets, made.backward) == (plan.keeping(True).buckets, plan.backward):
                return found | {"wrapping": name}
        return found | {"buckets": self.text(plan)}

    def _passed(self, plan: FsdpPlan, registrations: int = 0) -> Passed:
        """Return the step under a plan; another number of registrations asks again, as a pass may have changed."""
        traced = self._any.traced
        found = list(plans.after_each_pass(traced, plan, self.mode))
        lines = (("traced", traced.schedule()), *((name, graph.schedule()) for name, graph in found))
        return Passed(found[-1][1], lines)


def with_network(model: CostModel, devices: int, bandwidth: float | None, latency: float | None) -> CostModel:
    """Return a cost model in which one network joins all devices; the same model for neither number.

    Args:
        model: the cost model.
        devices: number of devices on the network.
        bandwidth: of each device, in bytes/s; ``None`` for the chip's links and NICs.
        latency: seconds before a collective starts; ``None`` for the chip's.

    Raises:
        UsageError: a number that no hardware has.
    """
    chip = model.chip
    if latency is not None:
        chip = chip.replace(start_latency=latency)
    if bandwidth is not None:  # all devices on one switch, whatever network the chip has
        chips = -(-devices // chip.devices_per_chip)
        chip = chip.replace(
            interconnect="switch", pod=(chips,), links=1, link_bw=bandwidth * chip.devices_per_chip,
            link_efficiency=1.0, hop_latency=_NO_TIME,
        )  # fmt: skip
    # Without the seconds that the other chip's model has found.
    return model if chip is model.chip else replace(model, chip=chip, _known={})
