"""1F1B in a V: two stages on each device, whole backward passes, two thirds of the memory of 1F1B (Qi et al. 2024b).

A building block says when each device takes the passes of a microbatch: forward down and up the V, one pass after
another, and backward down and up, two slots long each. The next microbatch does the same six slots later. At both ends
of the repeated block there are gaps; each pass moves into them as far as its inputs and the peak memory of the whole
allow, one after another in the order of the block, so that the steady phase stays as it is.

Unlike ``v_shaped`` this needs no split backward pass, and no W to fill the gaps with.
"""

from __future__ import annotations

from itertools import accumulate

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
    return [device.row() for device in moved_forward(devices, microbatches)]


def block(devices: int) -> list[int]:
    """Return the start of each hop of microbatch 0, in slots; repeated every six slots, no two of one device collide.

    Three backward passes fill a period; the next has to be another three slots later, or it would fall on the first.
    """
    forward = 2 * devices
    # Without the 3 slots, backward passes of a device would fall on its forward passes, modulo PERIOD.
    turn = forward + (3 if devices % 3 == 0 else 0)
    before = (1, 0, 2)[devices % 3]
    return [*range(forward), *(turn + 2 * hop + 3 * ((hop + before) // 3) for hop in range(forward))]


def moved_forward(devices: int, microbatches: int) -> list[DeviceSlots]:
    """Return the slots of all devices, each pass as far forward as it can move, one after another in order of time.

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m.
    """
    starts, down = block(devices), 2 * devices
    stages = [*range(down), *reversed(range(down))]  # of each hop: stage by stage forward, then backward
    found = [DeviceSlots(starts, stages, device, microbatches) for device in range(devices)]
    # The peak of the repeated block is the limit for all devices: at both ends there is room up to it.
    most = max(max(accumulate(device.change)) for device in found)
    came = [0] * microbatches  # when the last hop of each ended
    # For each hop the slot of the microbatch before: microbatches stay in order.
    latest = [-1] * len(stages)
    # The hops that may start at a slot are the same every PERIOD slots, from device 0 on.
    by_device = sorted((min(stage, down - 1 - stage), hop, starts[hop]) for hop, stage in enumerate(stages))
    phases = [[one for one in by_device if one[2] % PERIOD == phase] for phase in range(PERIOD)]
    for slot in range(max(starts) + PERIOD * (microbatches - 1) + 1):
        for device, hop, start in phases[slot % PERIOD]:
            number = (slot - start) // PERIOD
            if 0 <= number < microbatches:
                earliest = max(latest[hop] + 1, came[number])
                if hop < down:
                    latest[hop] = taken = found[device].forward(earliest, slot, most)
                    came[number] = taken + 1
                    found[device].actions[taken] = Action(stages[hop], "F", number)
                else:
                    latest[hop] = taken = found[device].backward(earliest, slot)
                    came[number] = taken + 2
                    found[device].actions[taken] = Action(stages[hop], "B", number)
    return found


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
                backward = hop >= len(stages) // 2
                for each in range(start + backward, slots, PERIOD)[:microbatches]:
                    change[each] += -1 if backward else 1
        self.change = change
        """By how many passes more the device keeps the activations after each slot than after the one before."""
        self._through = self._kept = 0
        """A slot, and the number of passes whose activations the device keeps before it."""
        self.taken = bytearray(slots)
        """Whether each slot is taken."""
        self.actions: list[Action | None] = [None] * slots
        """What begins in each slot."""

    def row(self) -> list[Action]:
        """Return the actions in order of their slots."""
        return [action for action in self.actions if action is not None]

    def forward(self, earliest: int, start: int, most: int) -> int:
        """Move a forward pass to the first free slot from which on memory stays within its limit.

        Args:
            earliest: first slot at which its input is available.
            start: its slot in the repeated block.
            most: passes whose activations the device may keep.

        Returns:
            The slot.
        """
        change = self.change
        for slot in range(self._through, start):
            self._kept += change[slot]
        self._through, slot, kept = start, start, self._kept
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
