"""A plan with the seconds of its steps, and what simulated islands need to know of it: found once for all its runs.

Launches that follow one another on the same devices, and wait for nothing else, are a *stretch*: islands enqueue it as
one task, and let many of its steps pass at once while nothing else happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pathways_nb.plan.footprint import overlap
from pathways_nb.plan.plan import Plan, Step

HOST = (-1, 0)
"""What stands for an island's host where else an interval of devices does."""


class Stretches(NamedTuple):
    """The order of a plan on one island; all by position in it.

    Args:
        steps: indices of the plan's steps.
        seconds: of the steps.
        stops: where the stretch that a step is in ends.
        quiet: up to where the steps from this one on are in its stretch, and nobody is told of their ends.
    """

    steps: np.ndarray
    seconds: np.ndarray
    stops: Sequence[int]
    quiet: Sequence[int]


@dataclass(frozen=True, eq=False)
class TimedPlan:
    """A plan with the duration of each of its steps.

    Args:
        plan: the plan.
        seconds: of each step.
        told: steps whose begin or end the owner must be told of when it happens.
    """

    plan: Plan
    seconds: Sequence[float]
    told: frozenset[int] = frozenset()

    @cached_property
    def wants(self) -> tuple[tuple[tuple[int, ...], tuple[int, int] | None], ...]:
        """By step: the producers that it must wait for, and what runs it.

        That is for a launch its devices as a half-open interval, for host work ``HOST``, and nothing for a transfer.
        """
        return tuple((self._awaited(step), self._runs_on(step)) for step in self.plan.steps)

    def _runs_on(self, step: Step) -> tuple[int, int] | None:
        where = self.plan.placements[step.place]
        return {"launch": (where.first, where.first + where.count), "host": HOST}.get(step.kind)

    def _awaited(self, step: Step) -> tuple[int, ...]:
        """Return the producers of a step that it must wait for explicitly.

        A launch need not wait for a producer on one of its own devices: the device's queue runs them in order.
        """
        steps, where = self.plan.steps, self.plan.placements
        if step.kind != "launch":
            return step.producers
        return tuple(
            p for p in step.producers
            if steps[p].kind != "launch" or not overlap(where[steps[p].place], where[step.place])
        )  # fmt: skip

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """By step: the steps that must wait for it explicitly."""
        found: list[list[int]] = [[] for _ in self.plan.steps]
        for index, (producers, _) in enumerate(self.wants):
            for producer in producers:
                found[producer].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def stretches(self) -> dict[int, Stretches]:
        """By island: its order."""
        return {island: self._stretches(order) for island, order in self.plan.orders.items()}

    def _stretches(self, order: Sequence[int]) -> Stretches:
        stops, quiet = [len(order)] * len(order), list(range(len(order)))
        for at in reversed(range(len(order))):
            producers, devices = self.wants[order[at]]
            follows = at + 1 < len(order) and self._follows(order[at], order[at + 1])
            stops[at] = stops[at + 1] if follows else at + 1
            if not (devices in (None, HOST) or producers or self.consumers[order[at]] or order[at] in self.told):
                quiet[at] = quiet[at + 1] if follows and quiet[at + 1] > at + 1 else at + 1
        return Stretches(np.array(order, np.intp), np.array([self.seconds[i] for i in order], float), stops, quiet)

    def _follows(self, step: int, other: int) -> bool:
        """Return whether a launch waits for nothing but one that is enqueued right before it."""
        producers, devices = self.wants[other]
        return devices not in (None, HOST) and not producers and devices == self.wants[step][1]
