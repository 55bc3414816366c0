"""Zero-bubble schedules of several stages on each device: interleaved ZB (ZB-1p) and ZB-V.

Nothing waits for the gradient by the weights but the optimizer, so it can run whenever a device has nothing else to do
(Qi et al. 2024, "Zero Bubble Pipeline Parallelism"). These are the two whose order is fixed by a formula; ``v_shaped``
has those that a list scheduler finds.
"""

from __future__ import annotations

from pathways_nb.parallel.schedules.actions import Action
from pathways_nb.parallel.schedules.closed_forms import ClosedForm, ScheduleSize
from pathways_nb.parallel.schedules.interleaved import depth_first, held_microbatches, require_rounds
from pathways_nb.parallel.schedules.registry import register_schedule
from pathways_nb.parallel.schedules.row_building import Side, require_two_chunks, with_weights


@register_schedule(
    "interleaved-zb",
    bubble=ClosedForm(
        "(p−1)(F+I−W)/v",
        lambda s, t: (s.devices - 1) * (t.F + t.I - t.W) / s.chunks,
        where=lambda s, t: s.microbatches >= s.devices and min(t.F, t.I) >= t.W,
        says="m ≥ p, F ≥ W, I ≥ W",
    ),
    peak=ClosedForm("min(mv, (v−1)g+p)/v, rounds of g = m/max(1, ⌊m/p⌋)", lambda s, r: held_microbatches(s, s.devices)),
)
def interleaved_zero_bubble(devices: int, microbatches: int, chunks: int = 2) -> list[list[Action]]:
    """Run interleaved 1F1B half as far ahead, with W on device r put off by r gradients (Qi et al. 2024, ZB-1p).

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m; its rounds must divide it.
        chunks: stages on each device, v.

    Returns:
        The actions of each device, in order.
    """
    require_rounds("interleaved-zb", microbatches, devices)
    size = ScheduleSize(devices, microbatches, chunks)
    # Half as far ahead as interleaved 1F1B: W, not further forward passes, fills the wait for gradients.
    return [with_weights(depth_first(device, size, "I", hops=1), delay=device) for device in range(devices)]


@register_schedule(
    "zb-v",
    bubble=ClosedForm(
        "(p−1)F/2",
        lambda s, t: (s.devices - 1) * t.F / 2,
        where=lambda s, t: s.microbatches >= 2 * s.devices - 1 and t.F == t.I >= t.W >= t.I / 2,
        says="m ≥ 2p−1, F = I ≥ W ≥ I/2",
    ),
    peak=ClosedForm("min(m, p, (m+r+1)/2)", lambda s, r: min(s.microbatches, s.devices, (s.microbatches + r + 1) / 2)),
)
def zero_bubble_v(devices: int, microbatches: int, chunks: int = 2) -> list[list[Action]]:
    """Run down and up a V of two stages on each device: no bubble where F = I = W (Qi et al. 2024, section 6).

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m.
        chunks: stages on each device; only 2.

    Returns:
        The actions of each device, in order.
    """
    require_two_chunks("zb-v", chunks)
    full = max(microbatches, 2 * devices - 1)  # enough to fill the V; the row of fewer is a part of it
    rows = [v_row(device, devices, full) for device in range(devices)]
    return [[action for action in row if action.microbatch < microbatches] for row in rows]


def v_row(device: int, devices: int, microbatches: int) -> list[Action]:
    """Return the row of a device in ZB-V.

    Args:
        device: from 0.
        devices: number of devices, p.
        microbatches: enough of them to fill the V, at least 2p − 1.
    """
    down, up = Side(device), Side(2 * devices - 1 - device)
    after = devices - device
    # The first microbatch passes at slot r and is back at slot 2p − 1 − r: so many passes fit between.
    row = [down("F") for _ in range(2 * after - 1)]
    # Then both stages have F to do, until the first gradient comes back to this device.
    row += [side("F") for _ in range(device) for side in (up, down)]
    # What comes up goes back at once: its I is what the devices above wait for.
    row += [up(operation) for _ in range(after) for operation in "FIW"]
    for left in range(microbatches - devices, 0, -1):
        # Steady: one F, I and W of each stage. At the end no microbatch is left to begin.
        row += [down("F")] if left >= after else []
        row += [down("I"), down("W"), up("F"), up("I"), up("W")]
    # Drain: I of both stages first, which others wait for; the W that were put off come last, where nobody waits.
    row += [side("I") for _ in range(device) for side in (down, up)]
    row += [down(operation) for _ in range(after) for operation in "IW"]
    return row + [side("W") for side in (up, down) for _ in range(device)]
