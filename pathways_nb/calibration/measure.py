"""All measurements of one calibration: every program is prepared, then they take turns, round after round.

Taking turns spreads other load on the machine over all programs alike, and medians over rounds drop its peaks. All
programs compile before the first round, so that no compilation falls into a measurement. A node's time is a share of a
chain, less what a program takes anyway, because a launch cannot be measured apart from the work behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import numpy as np

from pathways_nb.calibration import kernels
from pathways_nb.calibration.kernels import Kernel
from pathways_nb.calibration.measured_runs import Bench, StageSeconds, Start, seconds_of, stages_of
from pathways_nb.cost.calibration.fitted import line_of
from pathways_nb.cost.calibration.fitting import noise
from pathways_nb.cost.calibration.samples import Chain, Measured, Parted, Sample
from pathways_nb.cost.jaxpr.node_work import Work
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.session.session import Session
from pathways_nb.util.host_info import machine
from pathways_nb.util.progress import Progress

NODES, HOPS = 4, 4
"""Nodes of a chain, and of one that changes islands: enough for a program's fixed time to count little."""
LENGTHS = (1, 4, 16, 32)
"""Nodes of the chains from which the time of a launch is fitted."""
PARTS = 16
"""Nodes that do the work of one."""
_LEAST, _MOST = 3, 25
"""Fewest and most rounds."""
_SECONDS, _QUICK = 22.0, 5.0
"""Seconds after which no further round begins, of a full and of a quick calibration."""


@dataclass(eq=False)
class _Item:
    """A program to measure: some nodes of a kernel on each island.

    Args:
        group: what it is measured for: a class, a transfer, or a comparison.
        kernel: of each node.
        prepare: compiles the program.
        nodes: number of nodes on each island.
        bytes: size of the array that moves at each node; 0 if none does.
        seconds: measured, one of each round.
    """

    group: str
    kernel: Kernel
    prepare: Callable[[], Start]
    nodes: int = NODES
    bytes: int = 0
    seconds: list[float] = field(default_factory=list)


@dataclass(eq=False)
class _TinyChains:
    """Chains of tiny nodes of several lengths on some places.

    Args:
        places: one on each island that takes part.
        starts: the compiled chains, by length.
        stages: measured, by length, one of each round.
    """

    places: list[VirtualSlice]
    starts: dict[int, Start] = field(default_factory=dict)
    stages: dict[int, list[StageSeconds]] = field(default_factory=lambda: {nodes: [] for nodes in LENGTHS})

    def prepare(self, bench: Bench) -> None:
        """Compile the chains."""
        self.starts = {nodes: bench.chains(kernels.tiny(), self.places, nodes) for nodes in LENGTHS}

    def measure(self) -> None:
        """Measure each chain once."""
        for nodes, start in self.starts.items():
            self.stages[nodes].append(stages_of(start))

    def medians(self) -> tuple[Chain, ...]:
        """Return the medians of each length."""
        found = []
        for nodes, stages in self.stages.items():
            total, call, sent = (float(median(column)) for column in zip(*stages, strict=True))
            found.append(Chain(nodes, total, call, sent, noise([one.total for one in stages])))
        return tuple(found)


def measure(controller: Session, quick: bool, say: Callable[[str], object]) -> Measured:
    """Return the measurements of a controller's devices, all islands at the same time.

    Args:
        controller: the current one, with nothing under way.
        quick: whether to take fewer classes, sizes and repeats.
        say: called with lines of progress.
    """
    with Progress(say) as progress:
        return _MeasuredPrograms(controller, quick, progress).measured()


class _MeasuredPrograms:
    """One calibration's programs and their measurements.

    Args:
        controller: the current one.
        quick: whether to take fewer classes, sizes and repeats.
        progress: for lines of progress.
    """

    def __init__(self, controller: Session, quick: bool, progress: Progress):
        self.controller, self.bench, self.quick, self.progress = controller, Bench(controller), quick, progress
        self.shared = controller.platform == "cpu"  # only virtual devices share cores
        self.tiny_chains = [_TinyChains(self.bench.places), _TinyChains(self.bench.places[:1])]
        """Chains of tiny nodes on all islands, and on one."""
        self.items = [*self._work(), *self._moves()]

    def _work(self) -> Iterator[_Item]:
        """Yield programs of operations and collectives, and those that compare launches and devices."""
        bench, devices = self.bench, self.bench.devices
        exchanges = kernels.collectives(devices, self.quick) if devices > 1 else ()
        for kernel in (*kernels.operations(self.quick), *exchanges):
            yield _Item("class", kernel, partial(bench.chains, kernel, bench.places, NODES))
        for group, places in (("parted", bench.places), ("parted solo", bench.places[:1])):
            for nodes in (1, PARTS):
                kernel = kernels.medium(PARTS // nodes)
                yield _Item(group, kernel, partial(bench.chains, kernel, places, nodes), nodes)
        for kernel in kernels.large(self.quick) if devices > 1 and self.shared else ():
            yield _Item("alone", kernel, partial(bench.chains, kernel, bench.on(1), NODES))
            yield _Item("together", kernel, partial(bench.chains, kernel, bench.places, NODES))

    def _moves(self) -> Iterator[_Item]:
        """Yield programs that bring arrays of several sizes from the host, and between islands."""
        bench = self.bench
        for exponent in range(10, 21, 5 if self.quick else 2):
            array = np.ones(2**exponent // bench.devices, np.float32)
            moved = array.nbytes * bench.devices
            part = Kernel("host to island", lambda s: s[:1], (array,))
            yield _Item("host", part, partial(bench.from_host, part), 1, moved)
            if bench.islands > 1:
                whole = Kernel("island to island", lambda s: s + 1.0, (array,))
                yield _Item("between", whole, partial(bench.between_islands, whole, HOPS), HOPS, moved)

    def measured(self) -> Measured:
        """Return all measurements: prepare the programs, run them in turns, and compute each node's share."""
        # All are compiled before any is measured: a compilation would keep the cores busy.
        self._take_turns(self._prepared())
        chains, solo = (each.medians() for each in self.tiny_chains)
        anyway, _ = line_of(chains)  # seconds of a program on all islands, whatever its nodes
        parted, parted_solo = (self._parted(name) for name in ("parted", "parted solo"))
        samples: dict[str, list[Sample]] = {}
        for item in self.items:
            if item.group.startswith("parted"):
                continue  # whole programs are compared there, not shares of nodes
            key = item.kernel.kind if item.group == "class" else item.group
            samples.setdefault(key, []).append(self._sample(item, anyway))
        alone, together = (samples.pop(name, []) for name in ("alone", "together"))
        host, between = (tuple(samples.pop(name, ())) for name in ("host", "between"))
        # Of one device: virtual ones without a budget have equal parts of the machine's memory.
        memory = max(self.controller.budgets) or machine()["memory_bytes"] / sum(self.controller.islands)
        return Measured(
            self.bench.devices,
            self.bench.islands,
            float(memory),
            self.shared,
            chains,
            solo,
            parted,
            parted_solo,
            {kind: tuple(sorted(found, key=lambda one: one.size)) for kind, found in samples.items()},
            tuple((one.seconds, many.seconds) for one, many in zip(alone, together, strict=True)),
            host,
            between,
        )

    def _prepared(self) -> list[Start]:
        """Return the compiled programs, with a line of progress for each."""
        for chains in self.tiny_chains:
            chains.prepare(self.bench)
        starts = []
        for number, item in enumerate(self.items, 1):
            self.progress.tell(f"calibrating: preparing {number} of {len(self.items)}, {item.kernel.kind}")
            starts.append(item.prepare())
        return starts

    def _take_turns(self, starts: list[Start]) -> None:
        """Run rounds of all programs in random order until time is up."""
        # One seed: two calibrations differ by the machine alone.
        until, order = _QUICK if self.quick else _SECONDS, np.random.default_rng(0)
        for number in range(_MOST):
            # Fewer rounds would have no quartiles to tell the noise from, however slow the machine is.
            if number >= _LEAST and self.progress.passed > until:
                break
            for chains in self.tiny_chains:
                chains.measure()
            for index in order.permutation(len(starts)):  # a program must not always follow the same one
                item = self.items[index]
                self.progress.tell(f"calibrating: round {number + 1} of {_MOST} at most, {item.kernel.kind}")
                item.seconds.append(seconds_of(starts[index]))

    def _parted(self, group: str) -> Parted:
        """Return the seconds of work in one node and in ``PARTS`` nodes."""
        whole, parts = (median(item.seconds) for item in self.items if item.group == group)
        return Parted(PARTS, whole, parts)

    def _sample(self, item: _Item, anyway: float) -> Sample:
        """Return a node's share of a chain.

        Args:
            item: the measured program.
            anyway: seconds of a program without nodes, subtracted; the share stays above 0 where noise hides it.
        """
        total = median(item.seconds)
        # The kernel reads one element of what it brings on each device: its work counts for nothing.
        work = Work() if item.group == "host" else item.kernel.work(self.bench.devices)
        # Noise may hide a short node behind the fixed part; relative fits need a share above 0.
        share = max(total - anyway, total / 10) / item.nodes
        return Sample(item.kernel.kind, work, share, noise(item.seconds), item.bytes)
