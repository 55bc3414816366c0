"""Schedules of one stage on each device and whole backward passes: GPipe, 1F1B and eager 1F1B.

The three are one rule, ``one_stage``, and differ only in how many forward passes a device runs ahead of its first
backward pass: all m (GPipe, Huang et al. 2019), p−1−r (1F1B, the flush variant of PipeDream) or 2(p−1−r) (eager 1F1B,
Zhuang et al. 2023). Without transfers the bubble is the same for all and only the memory differs.
"""

from __future__ import annotations

from pathways_nb.parallel.schedules.actions import Action
from pathways_nb.parallel.schedules.closed_forms import ClosedForm
from pathways_nb.parallel.schedules.registry import register_schedule
from pathways_nb.parallel.schedules.row_building import alternating

ONE_ROUND = ClosedForm("(p−1)(F+B)", lambda s, t: (s.devices - 1) * (t.F + t.B))
"""The bubble of filling and draining a pipeline once (Huang et al. 2019, GPipe)."""


@register_schedule("gpipe", bubble=ONE_ROUND, peak=ClosedForm("m", lambda s, r: s.microbatches))
def gpipe(devices: int, microbatches: int) -> list[list[Action]]:
    """Run all forward passes, then all backward passes (Huang et al. 2019).

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m.

    Returns:
        The actions of each device, in order.
    """
    # All m ahead, so all are kept: the peak is m on each device.
    return [one_stage(stage, microbatches, ahead=microbatches) for stage in range(devices)]


@register_schedule(
    "1f1b", bubble=ONE_ROUND, peak=ClosedForm("min(m, p−r)", lambda s, r: min(s.microbatches, s.devices - r))
)
def one_forward_one_backward(devices: int, microbatches: int) -> list[list[Action]]:
    """Run as few forward passes ahead as keep the pipeline full, then one backward for each forward (PipeDream-Flush).

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m.

    Returns:
        The actions of each device, in order.
    """
    # Behind stage r there are p − 1 − r stages: so many further microbatches are on their way down when the gradient of
    # the first one starts to come up. Fewer leave a gap, more only take memory.
    return [one_stage(stage, microbatches, ahead=devices - 1 - stage) for stage in range(devices)]


@register_schedule(
    "eager-1f1b",
    bubble=ONE_ROUND,
    peak=ClosedForm("min(m, 2(p−r)−1)", lambda s, r: min(s.microbatches, 2 * (s.devices - r) - 1)),
)
def eager_one_forward_one_backward(devices: int, microbatches: int) -> list[list[Action]]:
    """Run twice as many forward passes ahead as 1F1B, so that transfers hide behind computation (Zhuang et al. 2023).

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m.

    Returns:
        The actions of each device, in order.
    """
    # Two for each stage behind: a microbatch may then be on the wire while the one before it is computed.
    return [one_stage(stage, microbatches, ahead=2 * (devices - 1 - stage)) for stage in range(devices)]


def one_stage(stage: int, microbatches: int, ahead: int) -> list[Action]:
    """Return the row of a device with one stage.

    Args:
        stage: of the model; the same number as the device.
        microbatches: number of microbatches, m.
        ahead: forward passes before the one whose backward pass comes first.
    """
    forwards, backwards = ([Action(stage, operation, each) for each in range(microbatches)] for operation in "FB")
    return alternating(forwards, backwards, ahead)
