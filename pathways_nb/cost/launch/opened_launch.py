"""A launch opened from inside: the operations of a compiled program on a device's queues, its seconds, its memory.

What a profiler shows of a launch that ran, this says of one that did not: the same ``Ops``, predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pathways_nb.cost.hlo.hlo_schedule import LaunchSchedule, schedule_of
from pathways_nb.cost.hlo.hlo_text import digest_of, parse
from pathways_nb.cost.hlo.phases import backward_begin
from pathways_nb.cost.launch.constants import LaunchConstants
from pathways_nb.cost.launch.launch_memory import LargeBuffer, LaunchMemory, memory_of
from pathways_nb.cost.launch.launch_timing import LaunchSeconds, launch_seconds
from pathways_nb.cost.launch.op_seconds import LaunchPlace, price_of
from pathways_nb.cost.launch.product_rates import product_rate
from pathways_nb.cost.launch.unrolled_ops import ops_of
from pathways_nb.trace.launch_ops import Ops
from pathways_nb.trace.op_hiding import exposed_by_line

__all__ = ["LargeBuffer", "LaunchMemory", "OpenedLaunch", "open_launch"]


@dataclass(frozen=True)
class OpenedLaunch:
    """A launch from inside; every device of it does the same.

    Args:
        ops: of one device, in seconds since the launch began; run 0, island 0, device 0, launch and program empty.
        seconds: with nothing hidden, in the compiler's order, with all hidden, and of each queue.
        memory: of one device; None if the compiler said nothing of it.
        basis: the compiler, the digest of its text, and the constants.
        notes: what could not be known, what a device is, and which passes of loops are not listed.
        backward: the instruction with which the backward pass begins; empty without one.
        exposed: lines of the user's code with their seconds of communication that no computation hides, of all blocks,
            the longest first; what stems from no known line is under its source or its name.
    """

    ops: Ops
    seconds: LaunchSeconds
    memory: LaunchMemory | None
    basis: str
    notes: tuple[str, ...] = ()
    backward: str = ""
    exposed: tuple[tuple[str, float], ...] = ()

    def placed(
        self,
        launch: str,
        program: str,
        node: int | None,
        run: int,
        island: int,
        device: int,
        start: float,
        seconds: float | None = None,
    ) -> Ops:
        """Return the ops as those of a launch in a run's record.

        Args:
            launch: name of the node that was launched.
            program: name of the program.
            node: id of the node in the program's graph; None for the node that each op has already.
            run: serial of the run.
            island: index of the island.
            device: index of the device within the island.
            start: when the launch began, in seconds since the run began.
            seconds: that it took, where that is not what is said here: all times are stretched to it.
        """
        count = len(self.ops)
        stretched = 1.0 if seconds is None or not self.seconds.ordered else seconds / self.seconds.ordered
        labels = [
            label._replace(launch=launch, program=program, node=label.node if node is None else node)
            for label in self.ops.labels
        ]
        stored = {"label": self.ops.stored("label")}
        for name, value in (("run", run), ("island", island), ("device", device)):
            stored[name] = np.full(count, value, np.int32)
        for name in ("start", "end"):
            stored[name] = start + stretched * self.ops.stored(name)
        return Ops(labels, stored)


def open_launch(
    text: str,
    place: LaunchPlace,
    known: LaunchConstants,
    *,
    buffers: str = "",
    memory: str = "",
    live: str = "",
    compiler: str = "",
    refused: str = "",
    trips: int | None = None,
) -> OpenedLaunch:
    """Return a launch from inside.

    Args:
        text: the scheduled program, as ``compiled.as_text()`` has it; empty where the compiler refused before that.
        place: the devices of the launch.
        known: constants of their chip.
        buffers: which value is where in memory, as XLA dumps it.
        memory: the report of the largest buffers, as XLA dumps it.
        live: how long each value lives, as XLA dumps it.
        compiler: name and version.
        refused: the compiler's words if the program does not fit.
        trips: of loops that end by their data; None if nobody knows.

    Raises:
        ValueError: the text is no compiled module.
    """
    module = parse(text) if text else None
    schedule = schedule_of(module, len(place.places), trips) if module else LaunchSchedule(())
    price = price_of(place, known)
    ops, left_out = ops_of(schedule, price)
    device = place.chip.device
    begin = backward_begin(module) if module else ""
    found = memory_of(module, ops, buffers, memory, live, refused, int(device.hbm_bytes), begin)
    compiled = f"compiled text {digest_of(text)}" if text else "no compiled text"
    basis = "; ".join(filter(None, (compiler, compiled, known.rates, "in the compiler's order")))
    products = (one.work for one, _ in schedule.runs() if one.work.flops)
    assumed = dict.fromkeys(note for work in products if (note := product_rate(work, place.chip).note))
    notes = *schedule.notes, *assumed, *left_out, *_of_device(place)
    return OpenedLaunch(ops, launch_seconds(schedule, price), found, basis, notes, begin, tuple(exposed_by_line(ops)))


def _of_device(place: LaunchPlace) -> tuple[str, ...]:
    """Return what a device is, where it is not simply a chip."""
    if (parts := place.chip.devices_per_chip) > 1:
        return (f"a device is one of the {parts} cores of a {place.chip.name}",)
    return ("a device is a whole chip, its cores together (megacore)",) if place.chip.name in _MEGACORE else ()


_MEGACORE = ("tpu_v4", "tpu_v5p")
"""Chips of two cores that compilers take for one device."""
