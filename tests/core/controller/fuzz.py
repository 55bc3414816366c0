"""Random events through the controller's pure core, as many as are asked for.

    python -m tests.core.controller.fuzz --events 1_000_000 [--seed N]

Batches of the worlds of ``random_world``, with parallel and sequential dispatch in turn, each batch from a seed of its
own, so that one that fails can be run again alone. All that the worlds check after every event is checked here too;
only the twin that must answer alike is asked at every tenth. Nothing is shrunk unless something fails.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.core.controller.random_world import SequentialWorld, World

STEPS, EXAMPLES = 60, 40
"""Of each world, and of each batch."""
_EVERY = 5.0
"""Seconds between two lines of progress."""


@dataclass
class Tally:
    """What has been handled so far."""

    worlds: Counter[str] = field(default_factory=Counter)
    policies: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    instructions: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    too_large: int = 0
    most_passed: int = 0
    began: float = field(default_factory=time.monotonic)
    told: float = 0.0

    def add(self, world: World) -> None:
        """A world has ended; now and then, say how far we are."""
        self.worlds[world.dispatch] += 1
        self.policies[world.policy.__name__] += 1
        self.events.update(type(event).__name__ for event, _ in world.log)
        self.instructions += world.devices.obeyed
        self.failed += world.devices.failed
        self.finished += len(world.devices.finished)
        self.too_large += world.too_large
        self.most_passed = max(self.most_passed, *world.devices.passed.values(), 0)
        if time.monotonic() > self.told + _EVERY:
            self.told = time.monotonic()
            print(self, flush=True)

    def __str__(self) -> str:
        count, seconds = self.events.total(), time.monotonic() - self.began
        return f"{count:,} events in {self.worlds.total():,} worlds, {count / seconds:,.0f} a second"

    def report(self) -> str:
        """Everything that was counted."""
        rows = {
            "worlds": _counts(self.worlds),
            "policies": _counts(self.policies),
            "events": _counts(self.events),
            "instructions": _counts(self.instructions),
            "programs": f"{self.finished:,} finished, of which {self.failed['OutOfMemoryError']:,} failed for want of "
            f"memory and {self.failed['PolicyError']:,} by their policy; {self.too_large:,} more refused as too large",
            "puts": f"at most {self.most_passed} programs and values passed one that waited for room",
        }
        return "\n".join([str(self), *(f"  {name}: {row}" for name, row in rows.items())])


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counter.most_common())


class Failed(Exception):  # noqa: N818  (it is no error of the fuzzer's)
    """Something that must hold of the controller did not; the text says how to see it again."""


def run(events: int, first: int, shrink: bool = True) -> Tally:
    """Handle at least so many events, in batches of seeds ``first``, ``first + 1`` and so on.

    Raises:
        Failed: something that must hold did not.
    """
    tally, number = Tally(), first
    while tally.events.total() < events:
        try:
            batch(number, tally)
        except Exception as error:
            raise Failed(f"after {tally}\n{_explain(_shortest(number, error) if shrink else error, number)}") from error
        number += 1
    return tally


def batch(number: int, tally: Tally, phases: tuple[Phase, ...] = (Phase.generate,)) -> None:
    """The worlds of one seed."""
    base = (World, SequentialWorld)[number % 2]

    class Counted(base):  # type: ignore[misc, valid-type]
        twin_every = 10

        def teardown(self) -> None:
            super().teardown()
            if hasattr(self, "machine"):
                tally.add(self)

    chosen = settings(
        max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, database=None, report_multiple_bugs=False,
        phases=phases, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    run_state_machine_as_test(seed(number)(Counted), settings=chosen)


def _shortest(number: int, error: Exception) -> Exception:
    """The same failure of the same batch with as few steps as it needs."""
    print(f"{type(error).__name__} in the batch of seed {number}: looking for fewer steps that show it", flush=True)
    try:
        batch(number, Tally(told=float("inf")), (Phase.generate, Phase.shrink))
    except Exception as shorter:
        return shorter
    return error


def _explain(error: Exception, number: int) -> str:
    notes = "\n".join(getattr(error, "__notes__", ())).splitlines()
    steps = [line for line in notes if line == "state.teardown()" or not re.fullmatch(r"state\.\w+\(\)", line)]
    at = traceback.extract_tb(error.__traceback__)[-1]
    return "\n".join(
        [f"{type(error).__name__}: {error}", f"  at {at.filename}:{at.lineno}", *steps,
         f"Again: python -m tests.core.controller.fuzz --events 1 --seed {number}"]
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, run, print; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.core.controller.fuzz", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--events", type=int, default=1_000_000, help="how many at least; default: %(default)s")
    parser.add_argument("--seed", type=int, default=None, help="of the first batch; chosen by chance if left out")
    options = parser.parse_args(arguments)
    first = random.randrange(10**6) if options.seed is None else options.seed
    print(f"seed {first}", flush=True)
    try:
        print(run(options.events, first).report())
    except Failed as failed:
        print(f"FAILED {failed}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
