"""What a driver knows of its runs on hosts: ranges and steps that have ended, and what fails with what.

A step has ended when all hosts of its island say so: one of them may have gone on without a value that did not come
(see ``remote_inputs``), and its word alone would hand out what is wrong.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pathways_nb.errors import PathwaysError
from pathways_nb.runtime.run_state import RunState
from pathways_nb.trace.rows import Cause


@dataclass(eq=False)
class RunOnHosts:
    """A run that was submitted.

    Args:
        run: the run.
        generations: the life of each island for which it was compiled.
        sources: by island and position among the plan's brings, the island that sends the argument there.
    """

    run: RunState
    generations: tuple[int, ...]
    sources: dict[tuple[int, int], int]
    ranges: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """By island, first and last step, the number of hosts on which a range has ended."""
    ended: set[int] = field(default_factory=set)
    """Steps of ranges that have ended on all hosts."""
    steps: dict[int, int] = field(default_factory=dict)
    """By step, the number of hosts on which it has ended."""
    values: dict[int, Any] = field(default_factory=dict)
    """By step, its only output if a host has sent it along."""
    lock: Any = field(default_factory=threading.Lock)
    causes: defaultdict[int, list[Cause]] = field(default_factory=lambda: defaultdict(list))
    """By island, why each of its ranges was sent."""
    arrived: Counter[tuple[int, int]] = field(default_factory=Counter)
    """By island and first device of a host, the number of ranges that have arrived there."""

    def cause(self, island: int, device: int) -> Cause | None:
        """Return why the range was sent whose arrival the host of a device reports: ranges arrive in order."""
        at = self.arrived[island, device]
        self.arrived[island, device] += 1
        return self.causes[island][at] if at < len(self.causes[island]) else None

    def range_ended(self, island: int, start: int, stop: int, hosts: int) -> None:
        """Count one host more on which a range has ended."""
        key = island, start, stop
        with self.lock:
            self.ranges[key] = self.ranges.get(key, 0) + 1
            if self.ranges[key] == hosts:
                self.ended.update(self.run.compiled_plan.plan.orders[island][start:stop])

    def step_ended(self, step: int, hosts: int, value: Any) -> bool:
        """Count one host more on which a step has ended well, and return whether it has on all."""
        with self.lock:
            self.steps[step] = self.steps.get(step, 0) + 1
            if value is not None:
                self.values[step] = value
            return self.steps[step] == hosts

    def lost_with(self, island: int) -> Iterator[int]:
        """Yield the steps that cannot end any more without an island: its own, and those that wait for its values."""
        compiled, plan = self.run.compiled_plan, self.run.compiled_plan.plan
        for index, step in enumerate(plan.steps):
            reads = step.kind == "move" and plan.steps[step.producers[0]].island == island
            if step.kind == "bring":
                reads = self.sources.get((step.island, compiled.bring_positions[index])) == island
            if (step.island == island or reads) and index not in self.ended:
                yield index

    def fail(self, step: int, error: PathwaysError) -> None:
        """Fail a step and all that depends on it, on whatever island."""
        run = self.run
        if step not in run.errors:
            run.fail(step, error)
        for index in range(step + 1, len(run.compiled_plan.plan.steps)):
            if index not in run.errors and (inherited := run.error_of(index)) is not None:
                run.fail(index, inherited)
