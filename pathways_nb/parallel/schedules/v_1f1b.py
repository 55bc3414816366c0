"""1F1B in a V: two stages on each device, whole backward passes, two thirds of the memory of 1F1B (Qi et al. 2024b).

A building block says when each device takes the passes of a microbatch: forward down and up the V, one pass after
another, and backward down and up, two slots long each. The next microbatch does the same six slots later. At both ends
of the repeated block there are gaps; each pass moves into them as far as its inputs and the peak memory of the whole
allow, one after another in the order of the block, so that the steady phase stays as it is.

Unlike ``v_shaped`` this needs no split backward pass, and no W to fill the gaps with.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from pathways_nb.parallel.schedules.actions import Action
from pathways_nb.parallel.schedules.closed_forms import ClosedForm
from pathways_nb.parallel.schedules.registry import register_schedule
from pathways_nb.parallel.schedules.row_building import require_two_chunks
from pathways_nb.parallel.schedules.v_shaped import PERIOD


@register_schedule(
    "1f1b-v",
    bubble=ClosedForm(
        "5(p−1)F/2",
        lambda s, t: 5 * (s.devices - 1) * t.F / 2,
        where=lambda s, t: t.F == t.I == t.W and s.devices % 3 == 1 and s.microbatches >= s.devices,
        says="F = I = W, p = 1, 4, 7, ..., and m ≥ p; else a little less",
    ),
    peak=ClosedForm(
        "⌊2p/3⌋+1",
        lambda s, r: 2 * s.devices // 3 + 1,
        where=lambda s, t: s.microbatches >= 2 * s.devices,
        says="m ≥ 2p",
    ),
)
def one_forward_one_backward_v(devices: int, microbatches: int, chunks: int = 2) -> list[list[Action]]:
    """Run 1F1B in a V: for F = I = W two thirds of the memory of 1F1B, and a smaller bubble (Qi et al. 2024b).

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m.
        chunks: stages on each device; only 2.

    Returns:
        The actions of each device, in order.
    """
    require_two_chunks("1f1b-v", chunks)
    return Moving(devices, microbatches).rows()


def block(devices: int) -> list[int]:
    """Return the start of each hop of microbatch 0, in slots; repeated every six slots, no two of one device collide.

    Three backward passes fill a period; the next has to be another three slots later, or it would fall on the first.
    """
    forward = 2 * devices
    # Without the 3 slots, backward passes of a device would fall on its forward passes, modulo PERIOD.
    turn = forward + (3 if devices % 3 == 0 else 0)
    before = (1, 0, 2)[devices % 3]
    return [*range(forward), *(turn + 2 * hop + 3 * ((hop + before) // 3) for hop in range(forward))]


class Moving:
    """The passes of the repeated block, moved as far forward as they can, one after another in order of time.

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m.
    """

    def __init__(self, devices: int, microbatches: int) -> None:
        self.starts, self.microbatches = block(devices), microbatches
        self.stages = [*range(2 * devices), *reversed(range(2 * devices))]
        """Of each hop: stage by stage forward, then backward."""
        self.devices = [DeviceSlots(self.starts, self.stages, device, microbatches) for device in range(devices)]
        self.came = [0] * microbatches
        """When the last hop of each microbatch ended."""
        self.latest = [-1] * len(self.stages)
        """For each hop the slot of the microbatch before: microbatches stay in order."""
        self.placed = list[tuple[list[Action | None], int, Action]]()
        """Device's actions, slot and action of each pass that was moved, one after another."""

    def rows(self) -> list[list[Action]]:
        """Return the actions of each device, in order."""
        down = len(self.stages) // 2
        # The peak of the repeated block is the limit for all devices: at both ends there is room up to it.
        most = max(max(accumulate(device.change)) for device in self.devices)
        # The hops that may start at a slot are the same every PERIOD slots, from device 0 on.
        hops = sorted((min(stage, down - 1 - stage), hop) for hop, stage in enumerate(self.stages))
        phases = [
            [(self.devices[d], h, self.starts[h]) for d, h in hops if self.starts[h] % PERIOD == p]
            for p in range(PERIOD)
        ]
        slot, before = 0, dict[tuple[Any, ...], tuple[int, int]]()
        while slot <= max(self.starts) + PERIOD * (self.microbatches - 1):
            if slot % PERIOD == 0:
                slot = self._repeat(slot, before)
            for device, hop, start in phases[slot % PERIOD]:
                number = (slot - start) // PERIOD
                if 0 <= number < self.microbatches:
                    earliest, backward = max(self.latest[hop] + 1, self.came[number]), hop >= down
                    taken = device.backward(earliest, slot) if backward else device.forward(earliest, slot, most)
                    self.latest[hop], self.came[number] = taken, taken + 1 + backward
                    device.actions[taken] = Action(self.stages[hop], "B" if backward else "F", number)
                    self.placed.append((device.actions, taken, device.actions[taken]))
            slot += 1
        return [[action for action in device.actions if action is not None] for device in self.devices]

    def _repeat(self, slot: int, before: dict[tuple[Any, ...], tuple[int, int]]) -> int:
        """Repeat what was done since everything stood as it does, as long as the block repeats.

        All that follows from a state follows again for later microbatches, until one of them is the last.

        Args:
            slot: where the next period begins.
            before: by state, the slot where that period began, and how many passes had been placed.

        Returns:
            The slot that is next.
        """
        number, span = slot // PERIOD, max(self.starts) // PERIOD + 1
        if not span < number < self.microbatches - 1:
            return slot
        low = min(self.latest) + 1  # no pass moves further forward from now on
        state = (
            *(one - slot for one in self.latest),
            *(one - slot for one in self.came[number - span : number]),
            *(device.state(low, slot) for device in self.devices),
        )
        if state not in before:
            before[state] = slot, len(self.placed)
            return slot
        since, placed = before[state]
        later = (slot - since) // PERIOD
        times = (self.microbatches - 1 - number) // later
        for row, taken, (stage, operation, microbatch, _, _) in self.placed[placed:]:
            for more in range(later, later * times + 1, later):
                row[taken + PERIOD * more] = Action(stage, operation, microbatch + more)
        slots, microbatches = PERIOD * later * times, later * times
        for device in self.devices:
            device.shift(low, slot, slots)
        self.latest = [one + slots for one in self.latest]
        self.came[number - span + microbatches : number + microbatches] = [
            one + slots for one in self.came[number - span : number]
        ]
        return slot + slots


class DeviceSlots:
    """The slots of one device, and what it does in them.

    Args:
        starts: of each hop of microbatch 0, in slots of a forward pass.
        stages: of each hop.
        device: from 0.
        microbatches: number of microbatches, m.
    """

    def __init__(self, starts: list[int], stages: list[int], device: int, microbatches: int) -> None:
        # A backward pass ends in the slot after its start, so there is one more slot than the last start.
        slots = max(starts) + PERIOD * (microbatches - 1) + 2
        change = [0] * slots
        for hop, (start, stage) in enumerate(zip(starts, stages, strict=True)):
            if device in (stage, len(stages) // 2 - 1 - stage):
                # A forward pass keeps activations from its slot on; a backward pass frees them after its second slot.
                first, more = (start, 1) if hop < len(stages) // 2 else (start + 1, -1)
                each = slice(first, first + PERIOD * microbatches, PERIOD)
                change[each] = [passes + more for passes in change[each]]
        self.actions: list[Action | None] = [None] * slots
        """What begins in each slot."""
        self.change = change
        """By how many passes more the device keeps the activations after each slot than after the one before."""
        self._through = self._kept = 0
        """A slot, and the number of passes whose activations the device keeps before it."""
        self.taken = bytearray(slots)
        """Whether each slot is taken."""

    def state(self, low: int, slot: int) -> tuple[Any, ...]:
        """Return all that passes from ``slot`` on, which move to ``low`` at most, depend on."""
        self._go_to(slot)
        return self._kept, bytes(self.taken[low : slot + 2]), *self.change[low : slot + 2]

    def shift(self, low: int, slot: int, slots: int) -> None:
        """Let the state at ``slot`` be that of a later slot, by so many slots."""
        self._through = slot + slots
        for column in (self.taken, self.change):
            column[low + slots : slot + slots + 2] = column[low : slot + 2]

    def _go_to(self, slot: int) -> None:
        """Count the passes whose activations the device keeps before a slot."""
        self._kept += sum(self.change[self._through : slot])
        self._through = slot

    def forward(self, earliest: int, start: int, most: int) -> int:
        """Move a forward pass to the first free slot from which on memory stays within its limit.

        Args:
            earliest: first slot at which its input is available.
            start: its slot in the repeated block.
            most: passes whose activations the device may keep.

        Returns:
            The slot.
        """
        self._go_to(start)
        change, slot, kept = self.change, start, self._kept
        # Back while one pass more fits into the memory of each slot on the way, at most to the first free slot.
        free = self.taken.find(0, earliest, start + 1)
        while slot > free and kept < most:
            slot -= 1
            kept -= change[slot]
        # Its own slot is free: passes before it in the order have only moved to earlier ones.
        slot = self.taken.find(0, slot, start + 1)
        self.taken[slot] = 1
        if slot < start:
            change[slot], change[start], self._kept = change[slot] + 1, change[start] - 1, self._kept + 1
        return slot

    def backward(self, earliest: int, start: int) -> int:
        """Move a backward pass, two slots long, to the first free place before it.

        Args:
            earliest: first slot at which its input is available.
            start: its first slot in the repeated block.

        Returns:
            Its first slot.
        """
        # It only frees memory sooner, so there is no limit to keep.
        slot = self.taken.find(b"\0\0", earliest, start)
        slot = start if slot < 0 else slot
        self.taken[slot : slot + 2] = b"\1\1"
        # Freed after its second slot there, in place of its second slot in the block.
        self.change[slot + 1] -= 1
        self.change[start + 1] += 1
        self._kept -= slot + 1 < self._through
        return slot
