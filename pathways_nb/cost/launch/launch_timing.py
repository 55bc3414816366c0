"""A schedule as tasks on the queues of a device: what runs when, and how long a launch takes.

Instructions run one by one on the first queue. What an instruction starts runs on a queue of its own, after what was
started there before, and the instruction that ends it waits. Loops are evaluated by ``timing.loops``, pass by pass
until passes repeat.

A launch has three numbers: with nothing hidden (all actions one after another), in the compiler's order, and with all
hidden (the busiest queue alone). What a compiler's order hides is not always hidden on a chip (``docs/guide``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pathways_nb.cost.hlo.hlo_schedule import LaunchAction, LaunchSchedule
from pathways_nb.timing.loops import Body, Loop
from pathways_nb.timing.waits import DATA, Waits

LANES = ("compute", "network", "copy", "host", "dcn")
"""The queues of a device, in the order of the lanes of its tasks."""
_LANE = {name: number for number, name in enumerate(LANES)}


Price = Callable[[LaunchAction], float]
"""Seconds of an action that is neither a loop nor the end of one that was started."""


@dataclass(frozen=True)
class LaunchSeconds:
    """How long a launch takes.

    Args:
        exposed: with nothing hidden.
        ordered: in the compiler's order.
        hidden: with all hidden behind the busiest queue.
        busy: seconds of each queue, by its name.
    """

    exposed: float
    ordered: float
    hidden: float
    busy: dict[str, float]


def launch_seconds(schedule: LaunchSchedule, price: Price) -> LaunchSeconds:
    """Return how long a schedule takes.

    Args:
        schedule: of a launch.
        price: seconds of each action.
    """
    busy = dict.fromkeys(LANES, 0.0)
    for action, times in schedule.runs():
        if action.role in ("run", "start"):
            busy[action.queue] += times * price(action)
    # Copies between a chip's own memories are prefetches, which every compiler hides.
    shown = [seconds for name, seconds in busy.items() if name != "copy"]
    ordered = Loop(body_of(schedule, price), 1).seconds
    return LaunchSeconds(sum(shown), ordered, max(shown), busy)


def body_of(schedule: LaunchSchedule, price: Price) -> Body:
    """Return a schedule as tasks on lanes; a task stands at the position of its action.

    Args:
        schedule: of a computation.
        price: seconds of each action.
    """
    lasts = np.zeros(len(schedule.actions))
    lanes: list[tuple[int, ...]] = []
    sources, targets = list[int](), list[int]()
    loops: dict[int, Loop] = {}
    last = -1  # the last action that the queue of instructions ran, which issues what is started next
    first = list[int]()  # what the pass before issues, as the queue of instructions has run nothing yet in this one
    for at, action in enumerate(schedule.actions):
        if action.role == "loop" and action.body is not None:
            loops[at] = Loop(body_of(action.body, price), action.trips)
            lanes.append(tuple(range(len(LANES))))
        elif action.role == "done":
            lanes.append((0,))
            if action.of >= 0:
                sources.append(action.of)
                targets.append(at)
        elif action.role == "start" and action.queue != "dcn":
            lasts[at] = price(action)
            lanes.append((_LANE[action.queue],))
            if last >= 0:
                sources.append(last)
                targets.append(at)
            else:
                first.append(at)
        else:
            lasts[at] = price(action)
            # A collective that is not started apart holds up the instructions, too; and so do transfers between slices,
            # whatever the compiler starts early: published steps grow by all of them.
            lanes.append((0,) if action.queue == "compute" else (0, _LANE[action.queue]))
        if 0 in lanes[-1]:
            last = at
    waits = Waits.of(np.array(sources, np.intp), np.array(targets, np.intp), np.full(len(sources), DATA))
    ahead = first if last >= 0 else []
    carried = Waits.of(np.full(len(ahead), last, np.intp), np.array(ahead, np.intp), np.full(len(ahead), DATA))
    return Body(lasts, lanes, waits, carried, loops)
