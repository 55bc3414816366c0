"""1F1B in a V: two stages on each device, whole backward passes, two thirds of the memory of 1F1B (Qi et al. 2024b).

A building block says when each device takes the passes of a microbatch: forward down and up the V, one pass after
another, and backward down and up, two slots long each. The next microbatch does the same six slots later. At both ends
of the repeated block there are gaps; each pass moves into them as far as its inputs and the peak memory of the whole
allow, one after another in the order of the block, so that the steady phase stays as it is.

Unlike ``v_shaped`` this needs no split backward pass, and no W to fill the gaps with.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from pathways_nb.parallel.schedules.actions import Action
from pathways_nb.parallel.schedules.closed_forms import ClosedForm
from pathways_nb.parallel.schedules.registry import register_schedule
from pathways_nb.parallel.schedules.row_building import require_two_chunks
from pathways_nb.parallel.schedules.v_shaped import PERIOD


class Pass(NamedTuple):
    """One pass of the repeated block; passes are ordered by time, then by device.

    Args:
        start: in slots of a forward pass.
        device: that does it.
        hop: its place on the way of its microbatch, 0 to 4p − 1: stage by stage forward, then backward.
        microbatch: from 0.
    """

    start: int
    device: int
    hop: int
    microbatch: int


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
    stages = [*range(2 * devices), *reversed(range(2 * devices))]  # the stage of each hop
    passes = sorted(
        Pass(start + PERIOD * number, min(stage, 2 * devices - 1 - stage), hop, number)
        for hop, (stage, start) in enumerate(zip(stages, block(devices), strict=True))
        for number in range(microbatches)
    )
    rows: list[list[tuple[int, Action]]] = [[] for _ in range(devices)]
    for (_, device, hop, number), slot in zip(passes, assign_slots(passes, devices), strict=True):
        rows[device].append((slot, Action(stages[hop], "F" if hop < 2 * devices else "B", number)))
    return [[action for _, action in sorted(row)] for row in rows]


def block(devices: int) -> list[int]:
    """Return the start of each hop of microbatch 0, in slots; repeated every six slots, no two of one device collide.

    Three backward passes fill a period; the next has to be another three slots later, or it would fall on the first.
    """
    forward = 2 * devices
    # Without the 3 slots, backward passes of a device would fall on its forward passes, modulo PERIOD.
    turn = forward + (3 if devices % 3 == 0 else 0)
    before = (1, 0, 2)[devices % 3]
    return [*range(forward), *(turn + 2 * hop + 3 * ((hop + before) // 3) for hop in range(forward))]


def assign_slots(passes: list[Pass], devices: int) -> list[int]:
    """Return the slot where each pass starts once it has moved as far forward as it can.

    Args:
        passes: of the repeated block, in order of time.
        devices: number of devices, p.
    """
    slot_rows = slots_of(passes, devices)
    # The peak of the repeated block is the limit for all devices: at both ends there is room up to it.
    most = max(max(slot_row.kept) for slot_row in slot_rows)
    came: dict[int, int] = {}  # for each microbatch, when its last hop ended
    # For each hop the slot of the microbatch before: microbatches stay in order.
    latest = [-1] * (4 * devices)
    slots = []
    for start, device, hop, number in passes:
        earliest = max(latest[hop] + 1, came.get(number, 0))
        backward = hop >= 2 * devices
        slot = (
            slot_rows[device].backward(earliest, start)
            if backward
            else slot_rows[device].forward(earliest, start, most)
        )
        latest[hop], came[number] = slot, slot + 1 + backward
        slots.append(slot)
    return slots


def slots_of(passes: list[Pass], devices: int) -> list[DeviceSlots]:
    """Return the slots of all devices, with the activations they keep if each pass stays where it is.

    Args:
        passes: of the repeated block, in order of time.
        devices: number of devices, p.
    """
    # A backward pass ends in the slot after its start, so there is one more slot than the last start.
    change = [[0] * (passes[-1].start + 2) for _ in range(devices)]
    for start, device, hop, _ in passes:
        backward = hop >= 2 * devices
        # A forward pass keeps activations from its slot on; a backward pass frees them after its second slot.
        change[device][start + backward] += -1 if backward else 1
    return [DeviceSlots(bytearray(len(each)), list(accumulate(each))) for each in change]


class DeviceSlots(NamedTuple):
    """The slots of one device.

    Args:
        taken: whether each slot is taken.
        kept: number of passes whose activations the device keeps after each slot.
    """

    taken: bytearray
    kept: list[int]

    def forward(self, earliest: int, start: int, most: int) -> int:
        """Move a forward pass to the first free slot from which on memory stays within its limit.

        Args:
            earliest: first slot at which its input is available.
            start: its slot in the repeated block.
            most: passes whose activations the device may keep.

        Returns:
            The slot.
        """
        slot = start
        # Back while one pass more fits into the memory of each slot on the way.
        while slot > earliest and self.kept[slot - 1] < most:
            slot -= 1
        # Its own slot is free: passes before it in the order have only moved to earlier ones.
        slot = self.taken.find(0, slot, start + 1)
        self.taken[slot] = 1
        for moved in range(slot, start):
            self.kept[moved] += 1
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
        for moved in range(slot + 1, start + 1):
            self.kept[moved] -= 1
        return slot
