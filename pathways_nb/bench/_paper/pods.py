"""Simulated pods that the paper's programs run on, their cost of dispatch, and how a rate is read from a record.

Figure 6 gives two sizes of computations that hide a call: the cost is assumed to grow with hosts along the line through
both. Whether that cost is one client's thread's or the controller's, which all clients share, Figure 6 cannot tell, so
a ``Line`` becomes a host model of either ``Reading``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

import pathways_nb as pw
from pathways_datasets import published
from pathways_nb.cost.hardware.host_costs import HOST, HostCosts
from pathways_nb.cost.model import CostModel
from pathways_nb.results.run import Run

CHIP = "tpu_v3"
PAPER = published("pathways")
JAX_CALL = 47.5e-6
"""Seconds of one call of a compiled function from Python: measured on CPU devices (44 to 51 µs), not fitted."""
Reading = Literal["client", "controller"]
"""Whose cost Figure 6 shows: each client's thread's, or the one controller's."""


class Line(NamedTuple):
    """Seconds of a call: ``fixed`` and ``per_host`` for each host."""

    fixed: float
    per_host: float

    def at(self, hosts: int) -> float:
        """Return the seconds of a call to so many hosts."""
        return self.fixed + self.per_host * hosts

    def host(self, reading: Reading, hosts: int) -> HostCosts:
        """Return the host model with this cost in each client's thread, or in the one controller.

        Args:
            reading: whose cost it is.
            hosts: number of hosts.
        """
        if reading == "client":
            return HOST.replace(call=self.at(hosts), message=0.0, per_host=0.0)
        return HOST.replace(message=self.fixed, per_host=self.per_host)


def line(few: int = 16, many: int = 512) -> Line:
    """Return the line through two points of Figure 6: two parameters, two points.

    Args:
        few: hosts of the smaller machine.
        many: hosts of the larger machine.
    """
    low, high = (PAPER["figure 6"][f"{hosts} hosts"]["value"] for hosts in (few, many))
    slope = (high - low) / (many - few)
    return Line(low - slope * few, slope)


def multi_controller() -> HostCosts:
    """Return the host model of JAX without a controller: each host enqueues for itself."""
    return HOST.replace(call=JAX_CALL, message=0.0, per_host=0.0)


@dataclass(frozen=True)
class PodSetting:
    """Islands of the same size.

    Args:
        hosts: of each island.
        per_host: devices of each host.
        islands: number of islands.
    """

    hosts: int
    per_host: int = 4
    islands: int = 1

    @property
    def devices(self) -> int:
        """Devices of each island."""
        return self.hosts * self.per_host

    @contextlib.contextmanager
    def attached(
        self, host: HostCosts | None = None, network: pw.Network | None = None, **options: Any
    ) -> Iterator[pw.Controller]:
        """Yield a simulated controller of these islands, which is closed at the end of the block.

        Args:
            host: host model; None for the usual one.
            network: None for the chip's own.
            options: as for ``pw.attach``.
        """
        model = CostModel.of(CHIP, network, host)
        options |= {"islands": self.islands, "devices_per_island": self.devices, "devices_per_host": self.per_host}
        # The figures are of dispatch; what a chip's compiler of some version says of a node must not move them.
        with pw.attach("sim", chip=model, compiler="cpu", **options) as controller:
            try:
                yield controller
            finally:
                controller.close()


def seconds_each(run: Run) -> float:
    """Return the seconds from the end of one program to the end of the next, in the second half of a run."""
    events = run.events.of_kind("compute")
    _, which = np.unique(events["run"], return_inverse=True)
    ends = np.zeros(which.max() + 1)
    np.maximum.at(ends, which, events["end"])
    # In the first half programs do not yet follow each other evenly.
    half = len(ends) // 2
    return float(ends[-1] - ends[half]) / (len(ends) - 1 - half)


def in_turn(program: pw.Program, start: Any, calls: int) -> float:
    """Return the seconds of a program among calls that each take the result of the one before, without waiting between.

    Args:
        program: to call.
        start: argument of the first call.
        calls: number of calls.
    """
    with pw.record() as run:
        for _ in range(calls):
            start = program(start)
    return seconds_each(run)


def side_by_side(program: pw.Program, start: Any, calls: int) -> float:
    """Return the seconds of a program among calls with the same argument, which may overlap.

    Args:
        program: to call.
        start: argument of all calls.
        calls: number of calls.
    """
    with pw.record() as run:
        for _ in range(calls):
            program(start)
    return seconds_each(run)
