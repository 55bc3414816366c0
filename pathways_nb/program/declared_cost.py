"""What a computation declares to cost on simulated devices, in place of an estimate from its code.

It is a number of seconds (``pw.work``), or something that knows what the computation does inside, such as the plan of a
sharded step: it says seconds, memory and operations on any chip.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, count
from typing import NamedTuple
from weakref import WeakValueDictionary

from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.launch.launch_timing import LaunchSeconds
from pathways_nb.cost.launch.opened_launch import OpenedLaunch
from pathways_nb.cost.model import CostModel
from pathways_nb.trace.launch_ops import concatenated


class DeclaredLaunch(NamedTuple):
    """A launch as it is declared.

    Args:
        opened: its operations, seconds and memory, of one device.
        flops: of one device.
    """

    opened: OpenedLaunch
    flops: float


def together(launches: Sequence[DeclaredLaunch]) -> DeclaredLaunch:
    """Return launches as one, in which they run one after another."""
    if len(launches) == 1:
        return launches[0]
    begins = [0.0, *accumulate(one.opened.seconds.ordered for one in launches)]
    parts = [one.opened.ops.moved(0, begin) for one, begin in zip(launches, begins, strict=False)]
    of_all = [one.opened.seconds for one in launches]
    exposed, ordered, hidden = (sum(getattr(one, name) for one in of_all) for name in ("exposed", "ordered", "hidden"))
    busy = {lane: sum(one.busy[lane] for one in of_all) for lane in of_all[0].busy}
    seconds = LaunchSeconds(exposed, ordered, hidden, busy)
    memory = max((one.opened.memory for one in launches if one.opened.memory), key=lambda one: one.peak, default=None)
    basis = "; ".join(dict.fromkeys(one.opened.basis for one in launches))
    notes = tuple(dict.fromkeys(note for one in launches for note in one.opened.notes))
    opened = OpenedLaunch(reduce(concatenated, parts), seconds, memory, basis, notes)
    return DeclaredLaunch(opened, sum(one.flops for one in launches))


class LaunchPlan(ABC):
    """What knows the inside of a computation's launches, whatever the chip."""

    @abstractmethod
    def launch(self, model: CostModel, topology: Topology) -> DeclaredLaunch:
        """Return a launch on some devices.

        Args:
            model: the cost model of their chip.
            topology: of their island.
        """

    @abstractmethod
    def beside(self, compiled: OpenedLaunch, planned: OpenedLaunch) -> str:
        """Return a line that compares a launch as the chip's own compiler makes it with the declared one."""


DeclaredCost = float | LaunchPlan | None
"""Seconds, the plan of a launch, or nothing."""

_plans: WeakValueDictionary[int, LaunchPlan] = WeakValueDictionary()
_numbers = count()


def written(cost: DeclaredCost) -> str:
    """Return a cost as text without ``_``, which the name of a computation's equation carries to the nodes."""
    if not isinstance(cost, LaunchPlan):
        return "" if cost is None else f"~{cost!r}"
    number = next(_numbers)
    # Weakly: names stay in traces that JAX keeps, and a trace is read while its computation, which has the plan, lives.
    _plans[number] = cost
    return f"~@{number}"


def read(text: str | None) -> DeclaredCost:
    """Return the cost that a text of ``written`` says."""
    if not text:
        return None
    return _plans.get(int(text[1:])) if text.startswith("@") else float(text)
