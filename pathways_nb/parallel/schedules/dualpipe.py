"""DualPipe and DualPipeV: a forward and a backward pass of different microbatches overlap (DeepSeek-V3 2024, 3.2.1).

DualPipe feeds one pipeline from each end, over the same devices, each of which therefore holds two stages (and a second
copy of the parameters). Cut in half and folded at the cut, it becomes DualPipeV: one pipeline, down and up a V. To a
device both are the same: a near stage, a far stage, and its distance from the end. So one function, ``overlapping``,
makes the rows of both.

The published bubble holds for F = I ≥ W only, which ``where`` of the closed forms says.
"""

from __future__ import annotations

from pathways_nb.parallel.schedules.actions import Cell, Overlap
from pathways_nb.parallel.schedules.closed_forms import ClosedForm
from pathways_nb.parallel.schedules.registry import register_schedule
from pathways_nb.parallel.schedules.row_building import Side, refuse, require_two_chunks, with_weights


@register_schedule(
    "dualpipe",
    bubble=ClosedForm(
        "(p/2−1)(F&B+B−3W)",
        lambda s, t: (s.devices / 2 - 1) * (t.F + 2 * t.B - 3 * t.W),
        where=lambda s, t: t.F == t.I >= t.W,
        says="F&B = F + B, F = I ≥ W",
    ),
    peak=ClosedForm("p+1", lambda s, r: s.devices + 1),
)
def dualpipe(devices: int, microbatches: int) -> list[list[Cell]]:
    """Run two pipelines in opposite directions, half the microbatches each (DeepSeek-V3 2024).

    Args:
        devices: number of devices, p; even.
        microbatches: of both directions together, m; even, and at least 2p.

    Returns:
        The cells of each device, in order.

    Raises:
        UsageError: a size that does not fit; the nearest that does is named.
    """
    if devices % 2:
        refuse("dualpipe", "devices", devices, "is odd: its two directions mirror each other", lambda p: p % 2 == 0)
    if microbatches % 2 or microbatches < 2 * devices:
        rule = f"does not fit devices={devices}: half of them go each way, so they are even, and at least 2·devices"
        refuse("dualpipe", "microbatches", microbatches, rule, lambda m: m % 2 == 0 and m >= 2 * devices)
    rows = []
    for device in range(devices):
        sides = Side(device, "a"), Side(devices - 1 - device, "b")
        # In the second half of the devices the second pipeline begins sooner: seen from the other end it is the same.
        near, far = sides if device < devices // 2 else reversed(sides)
        place = min(device, devices - 1 - device)
        rows.append(overlapping(near, far, place, devices // 2, microbatches // 2))
    return rows


@register_schedule(
    "dualpipe-v",
    bubble=ClosedForm(
        "(p−1)(F&B+B−3W)/2",
        lambda s, t: (s.devices - 1) * (t.F + 2 * t.B - 3 * t.W) / 2,
        where=lambda s, t: t.F == t.I >= t.W,
        says="F&B = F + B, F = I ≥ W",
    ),
    peak=ClosedForm("p+1/2", lambda s, r: s.devices + 1 / 2),
)
def dualpipe_v(devices: int, microbatches: int, chunks: int = 2) -> list[list[Cell]]:
    """Run DualPipe cut in half and folded: one pipeline down and up a V (Sea AI Lab 2025, "Cut-in-half").

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m; at least 2p.
        chunks: stages on each device; only 2.

    Returns:
        The cells of each device, in order.

    Raises:
        UsageError: a size that does not fit; the nearest that does is named.
    """
    require_two_chunks("dualpipe-v", chunks)
    if microbatches < 2 * devices:
        rule = f"does not fit devices={devices}: they are at least 2·devices"
        refuse("dualpipe-v", "microbatches", microbatches, rule, lambda m: m >= 2 * devices)
    return [
        overlapping(Side(device), Side(2 * devices - 1 - device), device, devices, microbatches)
        for device in range(devices)
    ]


def overlapping(near: Side, far: Side, place: int, half: int, microbatches: int) -> list[Cell]:
    """Return the row of a device with two stages that microbatches reach from opposite ends.

    Args:
        near: its stage that the first microbatches reach sooner.
        far: its other stage.
        place: distance of the device from the end of the pipeline, from 0.
        half: number of devices from the end to the middle.
        microbatches: through each of the two stages, at least 2·half.
    """
    inward = half - 1 - place
    # Steps 1 to 8 as the authors' program numbers them. 1: microbatches of the near end, until those of the far end can
    # be here.
    row: list[Cell] = [near("F") for _ in range(2 * inward)]
    # 2: both pipelines fill, in turn.
    row += [side("F") for _ in range(place + 1) for side in (near, far)]
    # 3: the first gradients come back. Split, so that I goes on at once and W fills the wait.
    row += with_weights(far(operation) for _ in range(inward) for operation in "IF")
    # 4: the steady phase, a pair in each direction.
    for steady in range(microbatches - 2 * half + place + 1):
        pair = near("F"), far("B")
        # The first pair in the middle stays two cells: its forward pass need not wait for the gradient.
        row += pair if inward == 0 and steady == 0 else [Overlap(*pair)]
        row.append(Overlap(far("F"), near("B")))
    # 5: no microbatch of the near end is left to begin.
    for _ in range(inward):
        row += [far("B"), Overlap(far("F"), near("B"))]
    left = [far, near] * (place + 1)  # the second half, like all that follows, delays W
    # 6: gradients of both stages in turn, the first half as whole backward passes.
    row += [side("B") for side in left[: place + 1]]
    # 7 and 8: I goes on without its W, for which no other device waits; the W that are left end the row.
    putting_off = left[place + 1 :] + [near] * inward
    return row + with_weights((side("I") for side in putting_off), delay=place)
