"""Schedules of several stages on each device, dealt round: device r has r, r + p, r + 2p, ... of p devices.

A pipeline of v·p short stages fills in a v-th of the time, for v times as many transfers. Interleaved 1F1B goes depth
first: a round of about p microbatches goes through all chunks before the next one starts (Narayanan et al. 2021,
section 2.2). Looped BFS goes breadth first: all microbatches through one chunk, then the next (Lamy-Poirier 2023).
"""

from __future__ import annotations

from pathways_nb.parallel.schedules.actions import Action
from pathways_nb.parallel.schedules.closed_forms import ClosedForm, Size
from pathways_nb.parallel.schedules.registry import register_schedule
from pathways_nb.parallel.schedules.rows import alternating, mirrored, refuse


def rounds(microbatches: int, devices: int) -> int:
    """How many rounds there are: one for each whole set of ``devices`` microbatches, and at least one."""
    return max(1, microbatches // devices)


def require_rounds(name: str, microbatches: int, devices: int) -> None:
    """That the microbatches divide into their rounds.

    Raises:
        UsageError: they do not.
    """
    if microbatches % rounds(microbatches, devices):
        rule = (
            f"on devices={devices} do not divide into {rounds(microbatches, devices)} rounds (microbatches // devices)"
        )
        refuse(name, "microbatches", microbatches, rule, lambda near: near % rounds(near, devices) == 0)


def depth_first(device: int, size: Size, backward: str, hops: int) -> list[Action]:
    """The row of a device that takes rounds through its chunks, with ``hops`` passes ahead for each device after it.

    Args:
        device: from 0. size: of the schedule. backward: what a backward pass is, B or I.
    """
    stages = range(device, size.devices * size.chunks, size.devices)
    many = size.microbatches // rounds(size.microbatches, size.devices)
    starts = range(0, size.microbatches, many)
    forwards = [Action(stage, "F", k + i) for k in starts for stage in stages for i in range(many)]
    backwards = [Action(stage, backward, k + i) for k in starts for stage in reversed(stages) for i in range(many)]
    return alternating(forwards, backwards, (size.chunks - 1) * many + hops * (size.devices - 1 - device))


def held(size: Size, ahead: int) -> float:
    """Microbatches that a device holds: ``ahead`` passes of its last chunk, and a round in each of the others."""
    many = size.microbatches // rounds(size.microbatches, size.devices)
    return min(size.microbatches * size.chunks, (size.chunks - 1) * many + ahead) / size.chunks


BY_CHUNKS = ClosedForm("(p−1)(F+B)/v", lambda s, t: (s.devices - 1) * (t.F + t.B) / s.chunks)


@register_schedule(
    "interleaved-1f1b",
    bubble=BY_CHUNKS,
    peak=ClosedForm("min(mv, (v−1)p+2(p−1−r)+1)/v", lambda s, r: held(s, 2 * (s.devices - 1 - r) + 1)),
)
def interleaved(devices: int, microbatches: int, chunks: int = 2) -> list[list[Action]]:
    """1F1B through several short stages on each device, rounds of microbatches one after another (Megatron-LM)."""
    require_rounds("interleaved-1f1b", microbatches, devices)
    size = Size(devices, microbatches, chunks)
    return [depth_first(device, size, "B", hops=2) for device in range(devices)]


@register_schedule("looped-bfs", bubble=BY_CHUNKS, peak=ClosedForm("m", lambda s, r: s.microbatches))
def looped_bfs(devices: int, microbatches: int, chunks: int = 2) -> list[list[Action]]:
    """All microbatches through one chunk, then through the next; backwards in reverse (Lamy-Poirier 2023)."""
    return [
        mirrored(
            [Action(stage, "F", i) for stage in range(device, devices * chunks, devices) for i in range(microbatches)]
        )
        for device in range(devices)
    ]
