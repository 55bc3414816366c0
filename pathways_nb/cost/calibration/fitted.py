"""The fits of a calibration, and the error of each class on sizes that its fit has not seen.

Fits follow one another, because each needs what the ones before explain: the launch, from chains of tiny nodes; what a
node takes besides its work, from work in one node and in several; how devices share cores; a roofline for each class of
operations beyond that; collectives beyond both; transfers. ``this_machine`` makes a cost model of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import fmean, median
from typing import NamedTuple

from pathways_nb.cost.calibration.fitting import Roofline, held_out, nonnegative, roofline
from pathways_nb.cost.calibration.samples import Chain, Measured, Sample
from pathways_nb.cost.collectives.kinds import BY_NAME
from pathways_nb.cost.collectives.pricing import collective
from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.cost.jaxpr.node_work import Work

Predict = Callable[[Sample], float]


class Check(NamedTuple):
    """The quality of one class of a calibration.

    ``noise`` is the median distance of the quartiles of its measurements, over their median; ``error`` the mean
    relative error of a fit on every second size on the others, None where there are too few.
    """

    kind: str
    samples: int
    noise: float
    error: float | None


@dataclass(frozen=True)
class MachineFit:
    """The parameters of one machine in seconds, while all devices of all islands work.

    Args:
        measured: all measurements.
        unit: an island like those measured, whose links carry a byte a second without any latency.
    """

    measured: Measured
    unit: Topology

    @cached_property
    def line(self) -> tuple[float, float]:
        """Seconds of a program of tiny nodes: its fixed part, and the part of each node."""
        return line_of(self.measured.chains)

    @property
    def node(self) -> float:
        """Seconds that a node takes on its devices in addition to its own work, while all islands work."""
        # Busy neighbours cannot make a node faster; only noise can make it look so.
        return max(self.measured.parted.seconds, self.node_alone)

    @property
    def node_alone(self) -> float:
        """The same while other islands are idle, and hosts run on their cores."""
        return self.measured.parted_solo.seconds

    @cached_property
    def oversubscription(self) -> float:
        """How many times longer a device takes while all others of its island work, too."""
        ratios = [together / alone for alone, together in self.measured.alone]
        # Between a core for each device and one core for all of them.
        most = float(self.measured.devices)
        return min(most, max(1.0, median(ratios))) if ratios and self.measured.shared else 1.0

    @cached_property
    def rooflines(self) -> Mapping[str, Roofline]:
        """Roofline of each class that was measured."""
        found: dict[str, Roofline] = {}
        # Elementwise operations first: measurements of other classes contain some, whose seconds are then known.
        for kind in sorted(filter(_computes, self.measured.samples), key=lambda kind: kind != "elementwise"):
            found[kind] = self._roofline(kind, self.measured.samples[kind], found)
        return found

    def _roofline(self, kind: str, samples: Sequence[Sample], others: Mapping[str, Roofline]) -> Roofline:
        """Return the roofline of one class, beyond nodes and beyond operations of other classes.

        Args:
            kind: class of operations.
            samples: of this class.
            others: rooflines that are known.
        """
        # (samples,) the work of this class, and the work of others whose seconds are known.
        own, rest = zip(*(_parted(sample.work, kind) for sample in samples), strict=True)
        before = [self.node + _seconds(work, others) for work in rest]
        bytes = [work.read + work.written for work in own]
        return roofline([work.flops for work in own], bytes, [sample.seconds for sample in samples], before)

    def compute(self, work: Work) -> float:
        """Return the seconds of the operations of a node."""
        return _seconds(work, self.rooflines)

    @cached_property
    def exchanges(self) -> Mapping[str, float]:
        """Seconds before any collective (under ``""``), and of each collective for a byte over one link."""
        kinds = self.measured.samples.items()
        return self._exchanges([sample for kind, samples in kinds if not _computes(kind) for sample in samples])

    def _exchanges(self, samples: Sequence[Sample]) -> Mapping[str, float]:
        """Return the fitted seconds of ``exchanges``, from these samples."""
        kinds = list(dict.fromkeys(sample.kind for sample in samples))
        if not kinds:
            return {}
        # (samples, 1 + kinds): the number of collectives, then the bytes of its own kind; one fit of all kinds, because
        # they share the time before any of them.
        terms = [(_count(s), *(self.over_link(s) if s.kind == kind else 0.0 for kind in kinds)) for s in samples]
        before = [self.node + self.compute(sample.work) for sample in samples]
        found = nonnegative(terms, [sample.seconds for sample in samples], before)
        return dict(zip(("", *kinds), found.tolist(), strict=True))

    def over_link(self, sample: Sample) -> float:
        """Return the bytes that a node's collectives put on one link, by the closed forms."""
        return sum(
            one.count * collective(one.kind, one.whole_bytes, self.unit, one.group).bandwidth
            for one in sample.work.collectives
        )

    @cached_property
    def from_host(self) -> tuple[float, float]:
        """Seconds of an array brought to an island: the fixed part, and the part of each byte."""
        return self._moves(self.measured.host_to_island, self.node)

    @cached_property
    def between(self) -> tuple[float, float]:
        """Seconds of an array moved to another island, while one of both works: the fixed part, and that of a byte."""
        return self._moves(self.measured.island_to_island, self.node_alone)

    def _moves(self, samples: Sequence[Sample], node: float) -> tuple[float, float]:
        """Return the fixed part and the part of each byte of transfers; zeros where none was measured.

        Args:
            samples: of transfers.
            node: seconds of a node in addition to its work.
        """
        if not samples:
            return 0.0, 0.0
        # (samples,) known seconds; the rest is a fixed part and a part of each byte.
        before = [node + self.compute(sample.work) for sample in samples]
        found = nonnegative([(1.0, s.bytes) for s in samples], [s.seconds for s in samples], before)
        return float(found[0]), float(found[1])

    @cached_property
    def host(self) -> dict[str, float]:
        """Seconds of the controller and the hosts.

        A launch is what each node adds to a chain of tiny ones on one island. The others, with the time of a node on
        its devices, add up to the fixed part of a program.
        """
        # Stages overlap, so each counts only as far as those before it leave room; the client's notice is the rest.
        left, chains, found = max(0.0, self.line[0] - self.node), self.measured.chains, {}
        for name in ("call", "sent"):
            found[name] = min(left, max(0.0, median(getattr(chain, name) for chain in chains)))
            left -= found[name]
        return {
            "call": found["call"],
            "message": found["sent"] / self.measured.islands,
            # Of one island: hosts of several enqueue at the same time, and would share cores.
            "launch": line_of(self.measured.solo)[1],
            "notice": left,
        }

    def judge(self) -> list[Check]:
        """Return for every class that was measured the noise, and the error on sizes that its fit has not seen."""
        measured = self.measured
        found = [_check("launch", measured.chains, held_out(measured.chains, _predict_chains, lambda c: c.total))]
        for kind, samples in measured.samples.items():
            judge = self._judge_roofline if _computes(kind) else self._judge_exchange
            found.append(_check(kind, samples, judge(kind, samples)))
        for kind, samples, node in (
            ("host to island", measured.host_to_island, self.node),
            ("island to island", measured.island_to_island, self.node_alone),
        ):
            if samples:
                found.append(_check(kind, samples, self._held_out(samples, partial(self._predict_moves, node))))
        return found

    def _held_out(self, samples: Sequence[Sample], fit: Callable[[list[Sample]], Predict]) -> list[float]:
        """Return the relative errors of a fit on every second size, on the others."""
        # By size, so that those left out lie between others.
        ordered = sorted(samples, key=lambda sample: sample.size)
        return held_out(ordered, fit, lambda sample: sample.seconds)

    def _judge_roofline(self, kind: str, samples: Sequence[Sample]) -> list[float]:
        """Return the held-out errors of a class of operations."""
        # Other classes keep the fit on all their samples: only this one is judged.
        others = {name: line for name, line in self.rooflines.items() if name != kind}
        dtypeless = kind.split()[0]

        def fit(seen: list[Sample]) -> Predict:
            lines = {**others, dtypeless: self._roofline(kind, seen, others)}
            return lambda s: self.node + _seconds(s.work, lines)

        return self._held_out(samples, fit)

    def _judge_exchange(self, kind: str, samples: Sequence[Sample]) -> list[float]:
        """Return the held-out errors of a collective."""

        def fit(seen: list[Sample]) -> Predict:
            found = self._exchanges(seen)
            return lambda s: self.node + self.compute(s.work) + found[""] * _count(s) + found[kind] * self.over_link(s)

        return self._held_out(samples, fit)

    def _predict_moves(self, node: float, seen: list[Sample]) -> Predict:
        """Return a prediction of transfers, fitted on the given samples."""
        anyway, byte = self._moves(seen, node)
        return lambda s: node + self.compute(s.work) + anyway + byte * s.bytes


def _computes(kind: str) -> bool:
    """Return whether a kind is a class of operations and no collective."""
    return kind not in BY_NAME


def _count(sample: Sample) -> int:
    """Return the number of collectives of a node."""
    return sum(one.count for one in sample.work.collectives)


def _parted(work: Work, kind: str) -> tuple[Work, Work]:
    """Return the operations of one class, whose name may contain a dtype, and all others."""
    of_class = [amount for amount in work.amounts if amount.kind == kind.split()[0]]
    return Work(tuple(of_class)), Work(tuple(amount for amount in work.amounts if amount not in of_class))


def _seconds(work: Work, lines: Mapping[str, Roofline]) -> float:
    """Return the seconds of operations; a class that was not measured counts as elementwise."""
    # Most of what has no measured class are cheap passes over memory, as elementwise operations are.
    usual = lines.get("elementwise", Roofline(0.0, 0.0))
    each = ((lines.get(amount.kind, usual), amount) for amount in work.amounts)
    return sum(line.seconds(amount.flops, amount.read + amount.written) for line, amount in each)


def line_of(chains: Sequence[Chain]) -> tuple[float, float]:
    """Return the fixed seconds of a program of tiny nodes, and the seconds of each of its nodes."""
    fixed, node = nonnegative([(1, chain.nodes) for chain in chains], [chain.total for chain in chains])
    return float(fixed), float(node)


def _predict_chains(seen: list[Chain]) -> Callable[[Chain], float]:
    """Return a prediction of chains, fitted on the given ones."""
    fixed, node = line_of(seen)
    return lambda chain: fixed + node * chain.nodes


def _check(kind: str, samples: Sequence[Sample | Chain], errors: Sequence[float]) -> Check:
    """Return the check of one class."""
    error = fmean(map(abs, errors)) if errors else None
    return Check(kind, len(samples), median(sample.noise for sample in samples), error)
