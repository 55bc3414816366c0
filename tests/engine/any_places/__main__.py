"""``python -m tests.engine.any_places --seconds 600 --seed 0``: random programs until the time is over."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

import pathways_nb as pw
from tests.engine.any_places.checking import Check
from tests.engine.any_places.writing import Writer


def main(arguments: list[str] | None = None) -> int:
    """Try programs, print those that fail; how many did is the last line."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.any_places", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="stop after so long")
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the next has the next")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="stop after so many programs")
    parser.add_argument("--shelf", type=int, help="take computations from the few that this seed determines: faster")
    parser.add_argument("--brief", action="store_true", help="print one line of each failure only")
    options = parser.parse_args(arguments)
    pw.attach("cpu", islands=3, devices_per_island=4)
    check = Check()
    end, seed, failed = time.monotonic() + options.seconds, options.seed, 0
    while time.monotonic() < end and seed - options.seed < options.count:
        failed += not tried(check, Writer(seed, options.shelf), f"seed {seed}", options.brief)
        seed += 1
    print(f"{seed - options.seed} programs from seed {options.seed}, {failed} failed")
    return 1 if failed else 0


def tried(check: Check, writer: Writer, name: str, brief: bool) -> bool:
    """Try one program; if it fails, say how, and print its text."""
    text = writer.text()
    try:
        check(text)
    except Exception as error:
        summary = " ".join(str(error).split())[:200]
        print(f"{name} ({writer.transform}): {type(error).__name__}: {summary}", flush=True)
        if not brief:
            traceback.print_exc()
            print(text, flush=True)
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
