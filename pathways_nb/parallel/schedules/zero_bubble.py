"""Zero-bubble schedules of one stage on each device: ZB-H1 and ZB-H2 (Qi et al. 2024a, section 2).

Splitting a backward pass shortens the way back through the pipeline: only the gradient by the input (I) is on it, and
that by the weights (W) fills what would be idle time. H1 keeps to the memory of 1F1B, H2 takes about twice as much and
leaves no device idle between its first and its last action. Both are as fast as possible where F = I = W: the last
device cannot start before p−1 passes, nor can the first one receive a gradient before 2p−1.

The closed forms count the whole makespan, which includes the skew between devices; the paper's zero counts each
device's own span only (``Timing.idle_within_own_span``). ``zero_bubble_chunks`` and ``v_shaped`` have the schedules
with two stages on each device.
"""

from __future__ import annotations

from pathways_nb.parallel.schedules.actions import Action
from pathways_nb.parallel.schedules.closed_forms import ClosedForm
from pathways_nb.parallel.schedules.registry import register_schedule
from pathways_nb.parallel.schedules.row_building import alternating, with_weights


@register_schedule(
    "zb-h1",
    bubble=ClosedForm(
        "(p−1)·max(F+I−W, F, I)",
        lambda s, t: (s.devices - 1) * max(t.F + t.I - t.W, t.F, t.I),
        where=lambda s, t: s.microbatches >= s.devices,
        says="m ≥ p",
    ),
    peak=ClosedForm("min(m, p)", lambda s, r: min(s.microbatches, s.devices)),
)
def zero_bubble_h1(devices: int, microbatches: int) -> list[list[Action]]:
    """Run 1F1B with a split backward pass: no device needs more memory than the first needs in 1F1B (ZB-H1).

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m.

    Returns:
        The actions of each device, in order.
    """
    # Device r keeps p − r microbatches as in 1F1B; r waiting W more make p, which device 0 keeps anyway.
    return [in_turn(r, microbatches, ahead=devices - 1 - r, delay=r) for r in range(devices)]


@register_schedule(
    "zb-h2",
    bubble=ClosedForm(
        "(p−1)·max(F+I−2W, F, I−F)",
        lambda s, t: (s.devices - 1) * max(t.F + t.I - 2 * t.W, t.F, t.I - t.F),
        where=lambda s, t: s.microbatches >= 2 * s.devices - 1,
        says="m ≥ 2p−1",
    ),
    peak=ClosedForm("min(m, 2p−1)", lambda s, r: min(s.microbatches, 2 * s.devices - 1)),
)
def zero_bubble_h2(devices: int, microbatches: int) -> list[list[Action]]:
    """Run twice as far ahead, for twice the memory: no device idles between its first and its last action (ZB-H2).

    At the end, I has to go up through all devices without a pause, so device r keeps 2r W for the time after it. With
    fewer than 2p−1 microbatches a device waits before that in any case, and has done some of these W by then.

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m.

    Returns:
        The actions of each device, in order.
    """
    further = max(0, microbatches - devices)
    # Twice the 1F1B lead: nothing is idle until the first gradient has come all the way up.
    return [in_turn(r, microbatches, ahead=2 * (devices - 1 - r), delay=r + min(r, further)) for r in range(devices)]


def in_turn(stage: int, microbatches: int, ahead: int, delay: int) -> list[Action]:
    """Return a row of ``ahead`` forward passes, then F and I in turn, each W ``delay`` gradients by the input later.

    Args:
        stage: of the model; the same number as the device.
        microbatches: number of microbatches, m.
        ahead: forward passes before the one whose I comes first.
        delay: number of I between an I and its W.
    """
    forwards, backwards = ([Action(stage, kind, number) for number in range(microbatches)] for kind in "FI")
    return with_weights(alternating(forwards, backwards, ahead), delay)
