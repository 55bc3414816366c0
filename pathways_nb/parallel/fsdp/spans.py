"""What happens on the streams of a device in a planned step: spans and stalls, in ticks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from pathways_nb.parallel.fsdp.costs import TICK

Stream = Literal["compute", "gather", "reduce"]


class Span(NamedTuple):
    """When an operation, or several in a row, ran.

    Args:
        name: ``StepGraph.label`` of the collective; ``"forward"``, ``"backward"``, or ``"pack"`` and ``"unpack"`` for
            copies into and out of buckets.
        stream: on which it ran.
        start: in ticks.
        end: in ticks.
        params: positions of the parameters that a collective carries.
        again: whether it gathers parameters for the backward pass.
        bytes: of the whole array that a collective exchanges.
        kind: of a collective, such as ``"all-gather"``.
    """

    name: str
    stream: Stream
    start: int
    end: int
    params: tuple[int, ...] = ()
    again: bool = False
    bytes: int = 0
    kind: str = ""


class Stall(NamedTuple):
    """Computation that waits.

    Args:
        start: in ticks.
        end: in ticks.
        cause: the span of the collective that it waits for.
    """

    start: int
    end: int
    cause: Span

    @property
    def seconds(self) -> float:
        """How long it waits."""
        return (self.end - self.start) * TICK


@dataclass(frozen=True)
class StepAbout:
    """What was planned.

    Args:
        step: the name of the loss, and the mode.
        plan: the name of the plan.
        chip: the name of the chip.
        devices: number of devices.
        bound: seconds of exposed communication that no plan can avoid, if known.
    """

    step: str = "step"
    plan: str = "planned"
    chip: str = ""
    devices: int = 0
    bound: float | None = None


UNKNOWN = StepAbout()
