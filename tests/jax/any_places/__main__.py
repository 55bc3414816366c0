"""``python -m tests.jax.any_places --seconds 600 --seed 0``: random programs until the time is over."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.support.compiler_effort import prepare

prepare()  # before the next line imports JAX

from tests.jax.any_places.trying import try_all  # noqa: E402

BATCH = 100
"""Programs of one process: what XLA compiles for them stays in its memory, and takes many of the maps it may have."""


def main(arguments: list[str] | None = None) -> int:
    """Try programs, print those that fail; how many did is the last line."""
    parser = argparse.ArgumentParser(prog="python -m tests.jax.any_places", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="stop after so long")
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the next has the next")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="stop after so many programs")
    parser.add_argument("--shelf", type=int, help="take computations from the few that this seed determines: faster")
    parser.add_argument("--donate", action="store_true", help="programs about donated memory, of which there is little")
    parser.add_argument("--simulate", action="store_true", help="in the simulator, with values")
    parser.add_argument("--brief", action="store_true", help="print one line of each failure only")
    options = parser.parse_args(arguments)
    end, tried, failed = time.monotonic() + options.seconds, 0, 0
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
        while time.monotonic() < end and tried < options.count:
            seeds = range(options.seed + tried, options.seed + min(tried + BATCH, options.count))
            how = options.shelf, options.simulate, options.brief, options.donate
            found = pool.submit(try_all, seeds, end, *how).result()
            tried, failed = tried + found[0], failed + found[1]
    print(f"{tried} programs from seed {options.seed}, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
