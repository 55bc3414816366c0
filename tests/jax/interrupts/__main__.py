"""``python -m tests.jax.interrupts --count 10000 --seed 0``: interrupts at random times, or at every instant."""

from __future__ import annotations

import argparse
import faulthandler
import random
import signal
import sys
from collections import Counter
from typing import Any

from tests.support.compiler_effort import prepare

prepare()  # before the next lines import JAX

from tests.jax.interrupts.interrupter import Heard, Interrupter, interrupted, seconds  # noqa: E402
from tests.jax.interrupts.operations import PATIENCE, World  # noqa: E402
from tests.support.forced_interrupts import Interrupt  # noqa: E402

OFTEN = 50
"""Interrupts between two checks that nothing is left."""


def at_random(world: World, count: int, seed: int, names: list[str]) -> Counter[str]:
    """Interrupt operations at random times, and return how many interrupts were raised and swallowed."""
    chosen, by, took, heard = random.Random(seed), Interrupter(), dict.fromkeys(names, 0.01), Heard()
    by.start()
    found: Counter[str] = Counter()
    for number in range(count):
        faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
        name = chosen.choice(names)
        came = interrupted(world.operations[name], chosen.uniform(0, 1.2 * took[name]), by)
        found["raised" if came else "swallowed"] += 1
        if not came:
            print(f"swallowed: interrupt {number}, of {name}, at\n{heard.text()}")
        _check(world, number, name)
        if number % OFTEN == 0:
            took[name] = min(2 * took[name], max(took[name] / 2, seconds(world.operations[name])))
    faulthandler.cancel_dump_traceback_later()
    return found


def at_every_instant(world: World, count: int, seed: int, names: list[str]) -> Counter[str]:
    """Interrupt operations at instants that are spread evenly, and return how many were raised and swallowed."""
    found: Counter[str] = Counter()
    for name in names:
        whole = Interrupt()
        whole.run(world.operations[name])
        every = max(1, whole.seen * len(names) // count)
        for number, at in enumerate(range(1 + seed % every, whole.seen + 1, every)):
            faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
            one = Interrupt(at)
            came = one.run(world.operations[name])
            found["raised" if came else "swallowed" if one.where else "not reached"] += 1
            _check(world, number, f"{name}, at {one.where}")
    faulthandler.cancel_dump_traceback_later()
    return found


def _check(world: World, number: int, what: str) -> None:
    try:
        world.check_next()
        if number % OFTEN == 0:
            world.check_rest()
    except AssertionError as error:
        raise SystemExit(f"after interrupt {number} of {what}: {error}") from error


def main(arguments: list[str] | None = None) -> int:
    """Interrupt, and print what became of the interrupts."""
    parser = argparse.ArgumentParser(prog="python -m tests.jax.interrupts", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="how many interrupts")
    parser.add_argument("--seed", type=int, default=0, help="of the times and operations")
    parser.add_argument("--forced", action="store_true", help="at instants of bytecode instead of random times")
    parser.add_argument("--simulate", action="store_true", help="on simulated devices")
    parser.add_argument("--only", nargs="*", help="names of operations")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored
    options = parser.parse_args(arguments)
    lost: Counter[str] = Counter()

    def swallowed(what: Any) -> None:
        """Count what was raised in a callback; its traceback would keep the futures of the call."""
        if isinstance(what.exc_value, KeyboardInterrupt):
            lost[str(what.object)] += 1

    sys.unraisablehook = swallowed
    world = World(options.simulate)
    names = options.only or list(world.operations)
    try_all = at_every_instant if options.forced else at_random
    found = try_all(world, options.count, options.seed, names)
    world.check_rest()
    print(f"{found.total()} interrupts: {dict(found)}; lost in callbacks: {dict(lost) or 0}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
