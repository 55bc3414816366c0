"""The command line, ``python -m pathways_nb COMMAND``: parses, calls, prints; nothing is decided here."""

from __future__ import annotations

import argparse
import csv
import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from pathways_nb.bench import report
from pathways_nb.parallel.schedules.registry import schedules


def status(_: argparse.Namespace) -> int:
    """Print the islands, devices and places of what ``attach("auto")`` finds here."""
    import pathways_nb as pw

    print(pw.attach("auto").status())
    return 0


def demo(options: argparse.Namespace) -> int:
    """Execute a notebook and write it as one page."""
    from pathways_nb.notebook.demo import DemoError, demo

    try:
        executed, page = demo(options.notebook, options.out)
    except DemoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"executed notebook: {executed}\npage:              {page}")
    return 0


def bench(options: argparse.Namespace) -> int:
    """Run one bench and print its report."""
    result = report.measure(options.name)
    print(report.as_json(result) if options.json else report.as_text(result))
    return 0


def schedule(options: argparse.Namespace) -> int:
    """Print a pipeline schedule."""
    import pathways_nb as pw
    from pathways_nb.parallel.schedules import export

    try:
        if options.load:
            runpy.run_path(str(options.load))
        made = pw.schedule(options.name, options.devices, options.microbatches, options.chunks, options.token_slices)
        proof = made.check()
    except (pw.PathwaysError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(export.document(made.name, made.timing())))
    elif options.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(export.table(made.timing()))
    else:
        print(f"{made}\n{proof}")
    return 0


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = argparse.ArgumentParser(prog="python -m pathways_nb", description=sys.modules["pathways_nb"].__doc__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    one = commands.add_parser("status", help=status.__doc__)
    one.set_defaults(run=status)

    one = commands.add_parser("demo", help=demo.__doc__)
    one.add_argument(
        "--notebook", type=Path, default=Path("notebooks/01_quickstart.ipynb"), help="default: %(default)s"
    )
    one.add_argument("--out", type=Path, default=Path("build"), help="folder for both files; default: %(default)s")
    one.set_defaults(run=demo)

    one = commands.add_parser("bench", help=bench.__doc__)
    one.add_argument("name", metavar="NAME", choices=report.names(), help=f"one of: {', '.join(report.names())}")
    one.add_argument("--json", action="store_true", help="one JSON object on standard output and nothing else")
    one.set_defaults(run=bench)

    one = commands.add_parser("schedule", help=schedule.__doc__, description="Print a pipeline schedule, checked.")
    one.add_argument("name", metavar="NAME", help=f"one of: {', '.join(schedules())}; or one of --load")
    one.add_argument("--devices", type=int, required=True, metavar="P")
    one.add_argument("--microbatches", type=int, required=True, metavar="M")
    one.add_argument("--chunks", type=int, metavar="V", help="stages on each device; default: the schedule's own")
    one.add_argument("--token-slices", type=int, metavar="K", help="of each sequence; default: the schedule's own")
    one.add_argument("--load", type=Path, metavar="FILE", help="Python file with @pw.register_schedule, run first")
    form = one.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object: ranks, stage_to_rank, sim and sizes")
    form.add_argument("--csv", action="store_true", help="a table with a line for each action and its times")
    one.set_defaults(run=schedule)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = parser().parse_args(arguments)
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
