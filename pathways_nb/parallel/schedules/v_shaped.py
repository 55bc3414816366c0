"""Schedules of two stages on each device in a V, with less memory than 1F1B: V-half and V-min (Qi et al. 2024b).

Device r has stages r and 2p−1−r, so that a microbatch goes down all devices and up again, twice: forward and, as I,
backward. A building block says when each of these four passes starts on each device; the next microbatch does the same
six passes later (2 F, 2 I, 2 W), so that no two passes fall on one slot. How long a block keeps its activations decides
the memory of the schedule ("Pipeline Parallelism with Controllable Memory", section 3). A list scheduler then squeezes
the repeated block: each device does the next pass of its block as soon as it can, and W whenever it would wait.

All of this is planned for F = I = W = 1; with other times the order stays valid, but no closed form is claimed.
"""

from __future__ import annotations

from collections import deque
from math import ceil, inf
from typing import Any

from pathways_nb.parallel.schedules.actions import Action
from pathways_nb.parallel.schedules.closed_forms import ClosedForm, ScheduleSize, Times
from pathways_nb.parallel.schedules.registry import register_schedule
from pathways_nb.parallel.schedules.row_building import require_two_chunks

PERIOD = 6
"""Passes of one microbatch on one device: F, I and W of two stages."""

DOWN, UP, BACK_DOWN, BACK_UP = range(4)
"""The four passes of a block in order: F of the first and of the second stage, I of the second and of the first."""

Block = list[tuple[int, int, int, int]]
"""For each device, the start of its four passes of microbatch 0, in passes."""


def planned_for(size: ScheduleSize, times: Times) -> bool:
    """Return whether the closed forms of a V hold: for equal times and a steady phase."""
    return times.F == times.I == times.W and size.microbatches > size.devices


@register_schedule(
    "v-half",
    bubble=ClosedForm(
        "(3p−4)F/2, of even p (3p−7)F/2",
        lambda s, t: (3 * s.devices - (4 if s.devices % 2 else 7)) * t.F / 2,
        where=lambda s, t: planned_for(s, t) and s.devices > 2,
        says="F = I = W, p > 2 and m > p",
    ),
    peak=ClosedForm(
        "⌊p/2⌋+1", lambda s, r: s.devices // 2 + 1, where=lambda s, t: s.microbatches > s.devices, says="m > p"
    ),
)
def v_half(devices: int, microbatches: int, chunks: int = 2) -> list[list[Action]]:
    """Run a V in half the memory of 1F1B, with half its bubble (Qi et al. 2024b).

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m.
        chunks: stages on each device; only 2.

    Returns:
        The actions of each device, in order.
    """
    require_two_chunks("v-half", chunks)
    # For even p the passes of a block would fall on the same slots modulo PERIOD without a wait at the turn.
    wait = 3 if devices % 2 == 0 and devices > 2 else 0
    turn = 3 * devices + wait - 1
    # Two slots a device down the V and one up: both stages of a device together keep a microbatch for 6p − 1 slots, and
    # another comes every 6. So each device keeps about p passes, half of what device 0 of 1F1B keeps.
    block = [(2 * r, 3 * devices - 2 - r, turn + 2 * r, turn + 3 * devices - 1 - r) for r in range(devices)]
    capacity = 2 * (devices // 2 + 1)
    return squeeze(block, microbatches, capacity, capacity)


@register_schedule(
    "v-min",
    bubble=ClosedForm(
        "(4p−5)F/2, of p = 5, 8, ... (4p−6)F/2, of p = 3, 6, ... (4p−7)F/2",
        lambda s, t: (4 * s.devices - (7, 5, 6)[s.devices % 3]) * t.F / 2,
        where=lambda s, t: planned_for(s, t) and s.devices > 2,
        says="F = I = W, p > 2 and m > p",
    ),
    peak=ClosedForm(
        "⌊(p+4)/3⌋",
        lambda s, r: (s.devices + 4) // 3,
        where=lambda s, t: s.microbatches > s.devices and s.devices % 3 != 2,
        says="m > p, p not 2, 5, 8, ...; there some devices have half a microbatch less",
    ),
)
def v_min(devices: int, microbatches: int, chunks: int = 2) -> list[list[Action]]:
    """Run a V in a third of the memory of 1F1B, the least there is, with two thirds of its bubble (Qi et al. 2024b).

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m.
        chunks: stages on each device; only 2.

    Returns:
        The actions of each device, in order.
    """
    require_two_chunks("v-min", chunks)
    # For p divisible by 3 the passes of a block would fall on the same slots modulo PERIOD without the 2.
    turn = 2 * devices + (2 if devices % 3 == 0 else 0)
    # One slot a device down and up: 4p slots together, so about 2p/3 passes, a third of 1F1B.
    block = [(r, 2 * devices - 1 - r, turn + r, turn + 2 * devices - 1 - r) for r in range(devices)]
    first = 2 if devices < 3 else 2 * (devices + 3) // 3
    return squeeze(block, microbatches, 2 * ((devices + 4) // 3), first)


def squeeze(block: Block, microbatches: int, capacity: int, first: int) -> list[list[Action]]:
    """Return the rows of a block repeated for each microbatch, every pass as early as its inputs and memory allow.

    Args:
        block: start of the four passes of each device.
        microbatches: number of microbatches, m.
        capacity: passes whose activations a device can keep.
        first: the same until the first I of stage r is done; on device 0, always.
    """
    devices = [DeviceRow(r, block, microbatches, capacity, first) for r in range(len(block))]
    for device in devices:
        device.connect(devices)
    busy, number = devices, 0
    before: dict[tuple[Any, ...], tuple[int, list[int]]] = {}
    while busy := [device for device in busy if device.left]:
        if devices[0].done[BACK_UP] > number:  # once for each microbatch
            number = devices[0].done[BACK_UP]
            _repeat(devices, number, before)
        # All devices choose before any of them acts: a result is available only in the slot after its pass.
        steps = [device.next() for device in busy]
        for device, step in zip(busy, steps, strict=True):
            device.append_pass(step)
    return [device.row for device in devices]


def _repeat(devices: list[DeviceRow], number: int, before: dict[tuple[Any, ...], tuple[int, list[int]]]) -> None:
    """Repeat what the devices did since they were in this state before, as long as microbatches begin.

    All that follows from a state follows again for later microbatches, until one of them is the last.

    Args:
        devices: of the V.
        number: the microbatch that device 0 has finished, from 1.
        before: by state, for which microbatch that was, and how long the rows were.
    """
    last = max(max(device.done) for device in devices)
    state = tuple(device.state(number) for device in devices)
    if state in before:
        first, lengths = before[state]
        times = max(0, (devices[0].microbatches - 1 - last) // (number - first))
        for device, length in zip(devices, lengths, strict=True):
            device.repeat(length, number - first, times)
    elif last < devices[0].microbatches:
        before[state] = number, [len(device.row) for device in devices]


class DeviceRow:
    """The row of one device of a V under construction: passes done, activations kept, passes due next.

    Args:
        number: of the device, r.
        block: see ``squeeze``.
        microbatches: see ``squeeze``.
        capacity: see ``squeeze``.
        first: see ``squeeze``.
    """

    def __init__(self, number: int, block: Block, microbatches: int, capacity: int, first: int) -> None:
        stages = number, 2 * len(block) - 1 - number
        self.stages = (stages[0], stages[1], stages[1], stages[0])
        self.microbatches, self.left = microbatches, PERIOD * microbatches
        self.done = [0, 0, 0, 0]
        self.due: list[float] = list(block[number])
        limit = microbatches + 1 + number  # more memory gains nothing where few microbatches do not fill the V
        self.first, self.capacity = min(first, limit), min(capacity if number else first, limit)
        self.kept, self.weights, self.row = 0, deque[Action](), list[Action]()

    def connect(self, devices: list[DeviceRow]) -> None:
        """Find the source of each pass's input: a device's counts and one of its passes."""
        number = self.stages[0]
        above = devices[number - 1].done if number else None
        there = [self.microbatches]  # the first pass of all has its inputs from the start
        below = devices[number + 1].done if number + 1 < len(devices) else None
        self.inputs = [
            (above, DOWN) if above else (there, 0),
            (below, UP) if below else (self.done, DOWN),
            (above, BACK_DOWN) if above else (self.done, UP),
            (below, BACK_UP) if below else (self.done, BACK_DOWN),
        ]

    def next(self) -> int | None:
        """Return the pass to do now; None if none is ready, so that there is time for W."""
        done, due = self.done, self.due
        if done[BACK_UP] and done[UP] < self.microbatches:  # the block's own order, which keeps the devices in step
            step = due.index(min(due))
            return step if self.ready(step) else None
        # At both ends any pass may run. Gradients first: their W can follow, which frees memory.
        for passes in ((BACK_DOWN, BACK_UP), (DOWN, UP)):
            for step in passes if due[passes[0]] <= due[passes[1]] else passes[::-1]:
                if self.ready(step):
                    return step
        return None

    def ready(self, step: int) -> bool:
        """Return whether a pass has a microbatch left, its input, and memory for the activations it has to keep."""
        number = self.done[step]
        # The input of microbatch n is there once its source has done more than n; no source does more than all.
        done, of = self.inputs[step]
        if done[of] <= number:
            return False
        # I keeps no new activations.
        if step >= BACK_DOWN:
            return True
        due, other = self.due[step], self.due[UP - step]
        # Room for passes of the other stage that the block places before this one: this pass must not take the
        # memory that they need.
        reserved = ceil((due - other) / PERIOD) if due > other else 0
        return self.kept + reserved < (self.capacity if self.done[BACK_UP] else self.first)

    def append_pass(self, step: int | None) -> None:
        """Append a pass to the row; for None a W if one waits, and else nothing."""
        if step is None:
            if self.weights:
                self.row.append(self.weights.popleft())
                # W is the last that reads the activations of its pass.
                self.kept -= 1
                self.left -= 1
            return
        stage, number = self.stages[step], self.done[step]
        self.done[step] = number + 1
        self.due[step] = self.due[step] + PERIOD if number + 1 < self.microbatches else inf
        self.left -= 1
        if step < BACK_DOWN:
            self.row.append(Action(stage, "F", number))
            self.kept += 1
        else:
            self.row.append(Action(stage, "I", number))
            self.weights.append(Action(stage, "W", number))

    def state(self, number: int) -> tuple[Any, ...]:
        """Return all that the next passes depend on, with microbatches counted from ``number``."""
        waiting = [(action.stage, action.microbatch - number) for action in self.weights]
        passes = [(done - number, due - PERIOD * number) for done, due in zip(self.done, self.due, strict=True)]
        return self.kept, self.done[BACK_UP] > 0, *passes, *waiting

    def repeat(self, start: int, later: int, times: int) -> None:
        """Append all that is in the row from ``start`` on again, for microbatches that are ``later``.

        Args:
            start: position in the row.
            later: by how many microbatches; once more at each time.
            times: how often.
        """
        again = self.row[start:]
        for more in range(later, later * times + 1, later):
            self.row += [Action(stage, operation, number + more) for stage, operation, number, _, _ in again]
        self.left -= times * len(again)
        self.done[:] = [done + later * times for done in self.done]  # in place: other devices read it
        self.due = [due + PERIOD * later * times for due in self.due]
        self.weights = deque(Action(one.stage, "W", one.microbatch + later * times) for one in self.weights)
