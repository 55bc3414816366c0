"""Simulated pods that the paper's programs run on, what dispatch costs there, and how a rate is read off a record.

Figure 6 gives two sizes of computations that hide a call: its cost is taken to grow with hosts along the line through
both. *Whose* cost that is, one client's thread or the controller that all clients share, Figure 6 cannot tell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

import pathways_nb as pw
from pathways_datasets import published
from pathways_nb.cost.hardware.host import HOST, Host
from pathways_nb.cost.model import CostModel
from pathways_nb.results.run import Run

CHIP = "tpu_v3"
PAPER = published("pathways")
JAX_CALL = 47.5e-6
"""Seconds of one call of a compiled function from Python: measured on CPU devices (44 to 51 µs), not fitted."""
Reading = Literal["client", "controller"]


class Line(NamedTuple):
    """Seconds that a call takes: ``fixed`` and ``per_host`` for each host."""

    fixed: float
    per_host: float

    def at(self, hosts: int) -> float:
        """For so many hosts."""
        return self.fixed + self.per_host * hosts

    def host(self, reading: Reading, hosts: int) -> Host:
        """The same as a cost of each client's thread, or of the one controller."""
        if reading == "client":
            return HOST.replace(call=self.at(hosts), message=0.0, per_host=0.0)
        return HOST.replace(message=self.fixed, per_host=self.per_host)


def line(few: int = 16, many: int = 512) -> Line:
    """Through both points of Figure 6: two parameters, two points."""
    low, high = (PAPER["figure 6"][f"{hosts} hosts"]["value"] for hosts in (few, many))
    slope = (high - low) / (many - few)
    return Line(low - slope * few, slope)


def multi_controller() -> Host:
    """JAX without a controller: each host's own Python enqueues, whatever the number of hosts."""
    return HOST.replace(call=JAX_CALL, message=0.0, per_host=0.0)


@dataclass(frozen=True)
class PodSetting:
    """Islands of ``hosts`` hosts with ``per_host`` devices each."""

    hosts: int
    per_host: int = 4
    islands: int = 1

    @property
    def devices(self) -> int:
        """Of each island."""
        return self.hosts * self.per_host

    @contextlib.contextmanager
    def attached(
        self, host: Host | None = None, network: pw.Network | None = None, **options: Any
    ) -> Iterator[pw.Controller]:
        """Its controller, for the length of a block; without a host or a network, the usual ones."""
        model = CostModel.of(CHIP, network, host)
        options |= {"islands": self.islands, "devices_per_island": self.devices, "devices_per_host": self.per_host}
        with pw.attach("sim", chip=model, **options) as controller:
            try:
                yield controller
            finally:
                controller.close()


def seconds_each(run: Run) -> float:
    """Seconds from the end of one program to the end of the next, once they follow each other evenly."""
    events = run.events.of_kind("compute")
    _, which = np.unique(events["run"], return_inverse=True)
    ends = np.zeros(which.max() + 1)
    np.maximum.at(ends, which, events["end"])
    half = len(ends) // 2
    return float(ends[-1] - ends[half]) / (len(ends) - 1 - half)


def in_turn(program: pw.Program, start: Any, calls: int) -> float:
    """Seconds of a program among ``calls`` that each take the result of the one before; nobody waits for any."""
    with pw.record() as run:
        for _ in range(calls):
            start = program(start)
    return seconds_each(run)


def side_by_side(program: pw.Program, start: Any, calls: int) -> float:
    """The same where each call takes the same argument, so that programs may overlap."""
    with pw.record() as run:
        for _ in range(calls):
            program(start)
    return seconds_each(run)
