"""The programs that a step was compiled as: all of it, or a few of its equal blocks, from which all of them follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pathways_nb.cost.hlo.hlo_schedule import LaunchSchedule, schedule_of
from pathways_nb.cost.hlo.hlo_text import HloModule
from pathways_nb.cost.launch.block_extrapolation import extended
from pathways_nb.cost.launch.launch_timing import Price
from pathways_nb.cost.launch.unrolled_ops import ops_of
from pathways_nb.trace.launch_ops import Ops


@dataclass(frozen=True, eq=False)
class ScheduledDepths:
    """The programs of a step, those with fewer blocks first.

    Args:
        modules: of each.
        schedules: of each.
        ops: of each.
        depths: blocks of each.
        blocks: of the step.
        price: seconds of an action.
    """

    modules: Sequence[HloModule]
    schedules: Sequence[LaunchSchedule]
    ops: Sequence[Ops]
    depths: Sequence[int]
    blocks: int
    price: Price

    @classmethod
    def of(
        cls,
        modules: Sequence[HloModule],
        devices: int,
        price: Price,
        depths: Sequence[int] = (1,),
        blocks: int = 1,
        trips: int | None = None,
    ) -> ScheduledDepths:
        """Return the programs with their schedules and ops.

        Args:
            modules: of each.
            devices: that they run on.
            price: seconds of an action.
            depths: blocks of each.
            blocks: of the step.
            trips: of loops that end by their data.
        """
        schedules = [schedule_of(module, devices, trips) for module in modules]
        ops = [ops_of(schedule, price)[0] for schedule in schedules]
        return cls(modules, schedules, ops, depths, blocks, price)

    def at_all_blocks(self, values: Sequence[float]) -> float:
        """Return a value of the step, from those of the programs."""
        return extended(values, self.depths, self.blocks)

    def sums(self, parts: Sequence[Sequence[float]]) -> list[float]:
        """Return amounts of the step, each no less than that of the deepest program.

        Args:
            parts: of each program the amounts.
        """
        return [max(self.at_all_blocks(values), values[-1]) for values in zip(*parts, strict=True)]
