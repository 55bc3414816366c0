"""Schedules of several stages on each device: device r of p has stages r, r + p, r + 2p, ...

A pipeline of v·p short stages fills in a v-th of the time, for v times as many transfers. Interleaved 1F1B goes depth
first: a round of about p microbatches goes through all chunks before the next one starts (Narayanan et al. 2021,
section 2.2). Looped BFS goes breadth first: all microbatches through one chunk, then the next (Lamy-Poirier 2023).

The closed forms of memory hold with rounds of m / ⌊m/p⌋ microbatches, as PyTorch makes them, not with rounds of p.
"""

from __future__ import annotations

from pathways_nb.parallel.schedules.actions import Action
from pathways_nb.parallel.schedules.closed_forms import ClosedForm, ScheduleSize
from pathways_nb.parallel.schedules.registry import register_schedule
from pathways_nb.parallel.schedules.row_building import alternating, mirrored, refuse


def rounds(microbatches: int, devices: int) -> int:
    """Return the number of rounds: one for each whole set of ``devices`` microbatches, and at least one."""
    return max(1, microbatches // devices)


def require_rounds(name: str, microbatches: int, devices: int) -> None:
    """Require that the rounds divide the microbatches.

    Args:
        name: of the schedule.
        microbatches: number of microbatches, m.
        devices: number of devices, p.

    Raises:
        UsageError: they do not.
    """
    if microbatches % rounds(microbatches, devices):
        rule = f"does not fit devices={devices}: {rounds(microbatches, devices)} rounds (m // p) do not divide them"
        refuse(name, "microbatches", microbatches, rule, lambda near: near % rounds(near, devices) == 0)


def depth_first(device: int, size: ScheduleSize, backward: str, hops: int) -> list[Action]:
    """Return the row of a device that takes one round after the other through its chunks.

    Args:
        device: from 0.
        size: of the schedule.
        backward: operation of a backward pass, B or I.
        hops: forward passes ahead for each device after this one.
    """
    stages = range(device, size.devices * size.chunks, size.devices)
    many = size.microbatches // rounds(size.microbatches, size.devices)
    # Rounds of equal length, so that no last round is shorter and leaves gaps.
    starts = range(0, size.microbatches, many)
    forwards = [Action(stage, "F", k + i) for k in starts for stage in stages for i in range(many)]
    backwards = [Action(stage, backward, k + i) for k in starts for stage in reversed(stages) for i in range(many)]
    # The first backward pass is of the last chunk, so a round through each of the other chunks precedes it.
    return alternating(forwards, backwards, (size.chunks - 1) * many + hops * (size.devices - 1 - device))


def held_microbatches(size: ScheduleSize, ahead: int) -> float:
    """Return the microbatches that a device holds: some passes of its last chunk, and a round in each of the others.

    Args:
        size: of the schedule.
        ahead: passes of the last chunk.
    """
    many = size.microbatches // rounds(size.microbatches, size.devices)
    return min(size.microbatches * size.chunks, (size.chunks - 1) * many + ahead) / size.chunks


BY_CHUNKS = ClosedForm(
    "(p−1)(F+B)/v",
    lambda s, t: (s.devices - 1) * (t.F + t.B) / s.chunks,
    where=lambda s, t: s.microbatches >= s.devices,
    says="m ≥ p",
)
"""The bubble of filling and draining a pipeline of stages a v-th as long, if there are microbatches to fill it."""


@register_schedule(
    "interleaved-1f1b",
    bubble=BY_CHUNKS,
    peak=ClosedForm(
        "min(mv, (v−1)g+2(p−1−r)+1)/v, rounds of g = m/max(1, ⌊m/p⌋)",
        lambda s, r: held_microbatches(s, 2 * (s.devices - 1 - r) + 1),
    ),
)
def interleaved(devices: int, microbatches: int, chunks: int = 2) -> list[list[Action]]:
    """Run 1F1B through several short stages on each device, one round of microbatches after another (Megatron-LM).

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m; its rounds must divide it.
        chunks: stages on each device, v.

    Returns:
        The actions of each device, in order.
    """
    require_rounds("interleaved-1f1b", microbatches, devices)
    size = ScheduleSize(devices, microbatches, chunks)
    # Two passes for each device behind this one: an activation goes down and a gradient comes up (Narayanan et al.
    # 2021: 2(p−r−1) + (v−1)p forward passes of warm-up).
    return [depth_first(device, size, "B", hops=2) for device in range(devices)]


@register_schedule("looped-bfs", bubble=BY_CHUNKS, peak=ClosedForm("m", lambda s, r: s.microbatches))
def looped_bfs(devices: int, microbatches: int, chunks: int = 2) -> list[list[Action]]:
    """Run all microbatches through one chunk, then through the next; backwards in reverse (Lamy-Poirier 2023).

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m.
        chunks: stages on each device, v.

    Returns:
        The actions of each device, in order.
    """
    return [
        mirrored(
            [Action(stage, "F", i) for stage in range(device, devices * chunks, devices) for i in range(microbatches)]
        )
        for device in range(devices)
    ]
