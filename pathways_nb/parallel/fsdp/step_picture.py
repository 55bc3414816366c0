"""What the explorer of a step shows, as plain data: its buckets, its timeline, its memory and its collectives.

Nothing here needs a notebook. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from pathways_nb.errors import size
from pathways_nb.parallel.fsdp.fsdp_plan import Bucket, FsdpPlan
from pathways_nb.parallel.fsdp.operation_costs import TICK
from pathways_nb.parallel.fsdp.plan_text import ModelNames
from pathways_nb.parallel.fsdp.step_planner import Planner
from pathways_nb.parallel.fsdp.stream_tasks import NEW_PARAMETERS, PARTIAL_SUMS, UPDATE, StreamSpan
from pathways_nb.parallel.fsdp.timeline import StepTimeline
from pathways_nb.trace.metrics import duration
from pathways_nb.util.words import counted

_REPEATED, _SHORT = re.compile(r"(.{1,40}?)\1{2,}"), 8
"""Letters of a schedule that come three times or more, and how many are written out."""
_SMALL = 1e-3
"""The share of the memory below which a category is not named."""


class Band(NamedTuple):
    """The buckets of one pass over the step.

    Args:
        heading: what it is.
        numbers: of each parameter, the number of its bucket, in the order of ``StepPicture.names``: (parameters,).
        lines: of each bucket, its parameters in words.
    """

    heading: str
    numbers: np.ndarray
    lines: tuple[str, ...]


NO_COLLECTIVES = ("compute", "backward", PARTIAL_SUMS, UPDATE, "stall")


class Box(NamedTuple):
    """What a device does for some time.

    Args:
        lane: number of its lane.
        kind: one of ``NO_COLLECTIVES``, or the kind of a collective.
        start: when it begins.
        end: when it ends.
        bucket: number of its bucket, from 0; -1 for none.
        words: what it computes, carries or waits for.
        bytes: of the whole array that a collective exchanges.
        exposed: seconds for which the device waits for it.
    """

    lane: int
    kind: str
    start: float
    end: float
    bucket: int = -1
    words: str = ""
    bytes: int = 0
    exposed: float = 0.0


@dataclass(frozen=True, eq=False)
class StepPicture:
    """A step under a plan in simulated time, or the reason why there is none.

    Attributes:
        headings: what it is, its time and its memory, in words.
        names: of the parameters, in the order of their use.
        sizes: bytes of each parameter as it is gathered or reduced, (parameters,).
        bands: buckets of the forward pass, and of the backward pass where they differ.
        lanes: names of the lanes.
        boxes: on the lanes.
        times: at which the memory changes, (times,).
        memory: by category, bytes from each time to the next, (times,).
        limit: bytes that a device has; 0 if that is not known.
        passes: name and schedule before the passes and after each.
        note: what is to be known about the choices; empty for nothing.
        error: why there is no picture; empty if there is one.
        plan: the plan; None where there is ``error``.
        timeline: None where there is ``error``.
        bound: seconds of exposed communication that no plan avoids.
    """

    headings: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    sizes: np.ndarray = field(default_factory=lambda: np.zeros(0))
    bands: tuple[Band, ...] = ()
    lanes: tuple[str, ...] = ()
    boxes: tuple[Box, ...] = ()
    times: np.ndarray = field(default_factory=lambda: np.zeros(0))
    memory: Mapping[str, np.ndarray] = field(default_factory=dict)
    limit: float = 0.0
    passes: tuple[tuple[str, str], ...] = ()
    note: str = ""
    error: str = ""
    plan: FsdpPlan | None = None
    timeline: StepTimeline | None = None
    bound: float = 0.0

    @property
    def collectives(self) -> tuple[Box, ...]:
        """The collectives of parameters and gradients, in the order in which they begin."""
        found = (box for box in self.boxes if box.kind not in NO_COLLECTIVES)
        return tuple(sorted(found, key=lambda box: (box.start, box.end)))

    @property
    def lines(self) -> tuple[str, ...]:
        """The picture in words: headings and note, or the error."""
        return tuple(part for part in (*self.headings, self.note, self.error) if part)

    def __repr__(self) -> str:
        return "\n".join(self.lines)


def picture_of(
    planner: Planner, plan: FsdpPlan, timeline: StepTimeline, *, streams: Literal[2, 3], limit: float = 0.0,
    passes: Sequence[tuple[str, str]] = (), about: str = "", note: str = "",
) -> StepPicture:  # fmt: skip
    """Return the picture of a step under a plan.

    Args:
        planner: of the step.
        plan: the plan.
        timeline: of the step under the plan.
        streams: 3 for gathers and reductions on streams of their own, 2 for both on one.
        limit: bytes that a device has.
        passes: name and schedule before the passes and after each.
        about: where the step runs, in words.
        note: what else is to be known.
    """
    bound = planner.bound_of(plan, streams)
    chosen, plan = plan, plan if planner.mode.gathers_again else plan.keeping(False)  # or it goes without saying
    order = _order(planner)
    parameters = planner.traced.parameters
    names = ModelNames([one.name for one in parameters])
    bands = _bands(plan, [parameters[param].name for param in order], names)
    sizes = {one.param: one.costs.whole_bytes for one in planner.outline.reductions}
    sizes |= {one.param: one.costs.whole_bytes for one in planner.outline.forward}
    headings = (f"{about} · {_plan_words(plan)}", _time_words(timeline, bound), _memory_words(timeline, limit))
    return StepPicture(
        headings, tuple(parameters[param].name for param in order),
        np.array([sizes.get(param, 0) for param in order], float), bands,
        ("compute", "gathers", "reductions") if streams == 3 else ("compute", "collectives"),
        tuple(_boxes(timeline, bands, [names.names[param] for param in order], streams)),
        timeline.memory.times * TICK, {str(name): held for name, held in timeline.memory.bytes.items()}, limit,
        tuple((name, shortened(line)) for name, line in passes), note, "", chosen, timeline, bound,
    )  # fmt: skip


def shortened(schedule: str) -> str:
    """Return a schedule in which what repeats is written once, as in ``"A (A7)×31 |"``."""

    def once(found: re.Match[str]) -> str:
        whole, unit = found[0], found[1]
        return whole if len(whole) < _SHORT else f" ({unit})×{len(whole) // len(unit)} "

    return " ".join(_REPEATED.sub(once, schedule).split())


def _order(planner: Planner) -> list[int]:
    """Return the parameters in the order of their use, or of their gradients from the last to the first."""
    outline = planner.outline
    found = [use.param for use in sorted(outline.forward, key=lambda use: use.read)]
    found += [one.param for one in reversed(outline.reductions)]
    return list(dict.fromkeys([*found, *range(len(planner.traced.parameters))]))


def _bands(plan: FsdpPlan, order: Sequence[str], names: ModelNames) -> tuple[Band, ...]:
    """Return the band of the forward pass, and that of the backward pass if it has other buckets."""
    forward = _band("buckets", plan.buckets, order, names)
    if plan.backward is None or _params(plan.backward) == _params(plan.buckets):
        return (forward,)
    return (forward._replace(heading=f"forward: {forward.heading}"),
            _band("backward: buckets", plan.backward, order, names))  # fmt: skip


def _params(buckets: Sequence[Bucket]) -> set[frozenset[str]]:
    return {frozenset(bucket.params) for bucket in buckets}


def _band(what: str, buckets: Sequence[Bucket], order: Sequence[str], names: ModelNames) -> Band:
    of = {name: position for position, bucket in enumerate(buckets) for name in bucket.params}
    numbers = {position: number for number, position in enumerate(dict.fromkeys(of[name] for name in order))}
    lines = [""] * len(numbers)
    for position, number in numbers.items():
        kept = " (kept)" if buckets[position].keep else ""
        lines[number] = names.line(buckets[position].params) + kept
    heading = what.replace("buckets", counted(len(buckets), "bucket"))
    return Band(heading, np.array([numbers[of[name]] for name in order]), tuple(lines))


def _boxes(timeline: StepTimeline, bands: Sequence[Band], order: Sequence[str], streams: Literal[2, 3]) -> list[Box]:
    """Return the spans and the stalls of a step."""
    exposed: dict[int, int] = {}  # ticks of waits, by the identity of the collective's span
    for stall in timeline.stalls:
        exposed[id(stall.cause)] = exposed.get(id(stall.cause), 0) + stall.end - stall.start
    at = {name: position for position, name in enumerate(order)}
    parameters = timeline.graph.parameters

    def bucket_of(span: StreamSpan) -> tuple[int, str]:
        """Return the number of a collective's bucket, and what it carries in words."""
        if not span.params or span.name == NEW_PARAMETERS:
            return -1, "new parameters" if span.params else "the loss"
        # The last band is that of the backward pass, where it has other buckets.
        band = bands[-1] if span.again or span.stream == "reduce" else bands[0]
        number = int(band.numbers[at[parameters[span.params[0]].name]])
        return number, band.lines[number].removesuffix(" (kept)")

    found = []
    for span in timeline.spans:
        where = 0 if span.stream == "compute" else 2 if span.stream == "reduce" and streams == 3 else 1
        times = (span.start * TICK, span.end * TICK)
        if span.stream == "compute":
            kind = span.name if span.name in NO_COLLECTIVES else "compute"
            found.append(Box(where, kind, *times, -1, span.name))
        else:
            kind = span.name if span.name == NEW_PARAMETERS else _kind(span)
            found.append(Box(where, kind, *times, *bucket_of(span), span.bytes, exposed.get(id(span), 0) * TICK))
    for stall in timeline.stalls:
        number, words = bucket_of(stall.cause)
        words, seconds = f"waits for the {_kind(stall.cause)} of {words}", stall.seconds
        found.append(Box(0, "stall", stall.start * TICK, stall.end * TICK, number, words, 0, seconds))
    return found


def _kind(span: StreamSpan) -> str:
    return f"{span.kind} again" if span.again else span.kind


# ---- words


def _plan_words(plan: FsdpPlan) -> str:
    count = counted(len(plan.buckets), "bucket")
    if plan.backward is not None:
        count = f"{count} forward and {len(plan.backward)} backward"
    kept = ", all kept" if all(bucket.keep for bucket in plan.buckets) else ", some kept" if plan.kept else ""
    return f"{plan.name}: {count}, prefetch {plan.prefetch}{kept}"


def _time_words(timeline: StepTimeline, bound: float) -> str:
    sums = f" · sums over other axes {duration(timeline.partial_sums)}" if timeline.partial_sums else ""
    copies = f", {duration(timeline.exposed - timeline.waited)} of it copies" if timeline.copied else ""
    return (
        f"step {duration(timeline.seconds)} · exposed {duration(timeline.exposed)}{copies} (bound {duration(bound)}) · "
        f"collectives {duration(timeline.exchanged)}{sums}"
    )


def _memory_words(timeline: StepTimeline, limit: float) -> str:
    peak = timeline.memory.peak
    parts = (f"{name} {size(held)}" for name, held in timeline.memory.at_peak().items() if held > _SMALL * peak)
    over = f" of {size(limit)}, ⚠ TOO MUCH" if 0 < limit < peak else f" of {size(limit)}" if limit else ""
    return f"peak memory {size(peak)}{over} · {' · '.join(parts)}"
