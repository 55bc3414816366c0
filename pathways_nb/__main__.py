"""The command line, ``python -m pathways_nb COMMAND``: parse options, call a function, print its result.

Nothing is decided in this module: whatever a command prints can be had in Python as well. A user's errors go to
standard error, with exit status 1.
"""

from __future__ import annotations

import argparse
import csv
import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pathways_nb.errors import PathwaysError, UsageError
from pathways_nb.parallel.schedules.registry import schedules

try:
    from pathways_nb.bench import against, report
except ModuleNotFoundError as missing:
    if missing.name != "pathways_nb.bench":
        raise
    has_benches = False  # a wheel leaves them out (pyproject.toml)
else:
    has_benches = True


def status(_: argparse.Namespace) -> int:
    """Print the islands, devices and places of what ``attach("auto")`` finds on this machine.

    Returns:
        Exit status 0.
    """
    import pathways_nb as pw

    print(pw.attach("auto").status())
    return 0


def demo(options: argparse.Namespace) -> int:
    """Execute a notebook and write it as one page.

    Returns:
        Exit status; 1 if the demo could not be made.
    """
    from pathways_nb.notebook.demo import DemoError, demo

    try:
        executed, page = demo(options.notebook, options.out)
    except DemoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"executed notebook: {executed}\npage:              {page}")
    return 0


def lab(options: argparse.Namespace) -> int:
    """Copy the course into a folder and open it in JupyterLab.

    Returns:
        Exit status 1 if the folder cannot be used; otherwise the process becomes JupyterLab.
    """
    from pathways_nb.course import course_folder

    try:
        copied, kept = course_folder.copy_course(options.folder)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"the course: {options.folder.resolve()} ({copied} files copied, {kept} were there and stay)", flush=True)
    course_folder.open_lab(options.folder, options.options)


def bench(options: argparse.Namespace) -> int:
    """Run benches and print their reports, or what became slower since the ones in a file.

    Returns:
        Exit status; 1 if something became slower, 2 if it could not be measured.
    """
    if not has_benches:
        print("error: bench needs a clone of the project; an installed package holds no benches.", file=sys.stderr)
        return 2
    try:
        if options.against:
            if options.short or options.json:
                raise UsageError("bench --against FILE prints text about short benches; leave out --short and --json.")
            lines, slower = against.compare(options.against, options.names, _say)
            print("\n".join(lines))
            return int(slower)
        if not options.names:
            raise UsageError(f"bench needs the NAME of one or more of: {', '.join(report.names())}; or --against FILE.")
        measured = [against.repeated(name, _say) if options.short else report.measure(name) for name in options.names]
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        texts = list(map(report.as_json, measured))
        print(texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]")
    else:
        print("\n".join(map(report.as_text, measured)))
    return 0


def _say(line: str) -> None:
    """Show progress."""
    print(line, file=sys.stderr, flush=True)


def schedule(options: argparse.Namespace) -> int:
    """Print a pipeline schedule.

    Returns:
        Exit status; 1 if there is no such schedule, or it breaks a dependency.
    """
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


def terapipe_plan(options: argparse.Namespace) -> int:
    """Print the optimal slicing of every case of a file.

    Returns:
        Exit status; 1 if the file, or one of its cases, cannot be solved.
    """
    from pathways_nb.parallel.terapipe import case_files

    try:
        solved = case_files.solve_file(options.file)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"cases": solved}) if options.json else "\n".join(case_files.as_lines(solved)))
    return 1 if any("error" in one for one in solved) else 0


def compilers(options: argparse.Namespace) -> int:
    """Install compilers for chips that are not here, or say which there are.

    Returns:
        Exit status; 1 if one could not be installed.
    """
    from pathways_nb.compilers import packages
    from pathways_nb.compilers.disk_cache import compiler_cache

    try:
        for kind in options.install or ():
            packages.install(kind, _say)
        for kind in packages.PACKAGES:
            there = packages.is_installed(kind)
            print(f"{kind}: {packages.version_of(kind) if there else packages.how_to_install(kind)}")
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(compiler_cache())
    return 0


def predict_steps(options: argparse.Namespace) -> int:
    """Predict the training steps of a file of rows.

    Returns:
        Exit status; 1 if the file cannot be read.
    """
    from pathways_nb.published import prediction, step_rows

    try:
        read = step_rows.read_rows(options.file)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    found = prediction.predictions(read, _say)
    if options.json:
        print(json.dumps({"rows": [prediction.as_json(row, one) for row, one in zip(read, found, strict=True)]}))
    else:
        print("\n".join(prediction.as_line(row, one) for row, one in zip(read, found, strict=True)))
    return 0


def adopt(options: argparse.Namespace) -> int:
    """Print what a jitted step does on chips that are not here, and check it.

    Returns:
        Exit status; 1 if it is more than agreed, or cannot be adopted.
    """
    from pathways_nb.adopt import step_check

    try:
        mesh = None if options.mesh is None else step_check.sizes_in(options.mesh)
        step = step_check.adopt_from(options.step, options.chip, mesh, options.preset)
        before = None if options.against is None else step_check.saved(options.against)
        found = step_check.problems(step, step_check.Budget.of(options.budget or ""), before)
        print(step_check.report(step, found))
        if options.save is not None:
            step.save(options.save)
    except PathwaysError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 1 if found else 0


def _bench_name(text: str) -> str:
    """Return the name of a bench, or any text where there are no benches.

    Raises:
        ArgumentTypeError: there is no such bench.
    """
    if has_benches and text not in report.names():
        raise argparse.ArgumentTypeError(f"{text!r} (choose from {', '.join(report.names())})")
    return text


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands and their options."""
    top = argparse.ArgumentParser(
        prog="python -m pathways_nb", description=(sys.modules["pathways_nb"].__doc__ or "").partition("\n")[0]
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    one = commands.add_parser("status", help='Print the islands, devices and places of what attach("auto") finds here.')
    one.set_defaults(run=status)

    one = commands.add_parser("lab", help="Copy the course into a folder of yours and open it in JupyterLab.")
    one.add_argument("folder", type=Path, nargs="?", default=Path("pathways_course"), help="default: %(default)s")
    one.add_argument("options", nargs=argparse.REMAINDER, help="further options of JupyterLab, such as --no-browser")
    one.set_defaults(run=lab)

    one = commands.add_parser("demo", help="Execute a notebook and write it as one page.")
    one.add_argument(
        "--notebook", type=Path, default=Path("notebooks/01_quickstart.ipynb"), help="default: %(default)s"
    )
    one.add_argument("--out", type=Path, default=Path("build"), help="folder for both files; default: %(default)s")
    one.set_defaults(run=demo)

    one = commands.add_parser("bench", help="Run benches and print their reports; needs a clone of the project.")
    known = f"of: {', '.join(report.names())}" if has_benches else "of a bench"
    one.add_argument("names", metavar="NAME", nargs="*", type=_bench_name, help=known)
    one.add_argument("--json", action="store_true", help="on standard output one JSON object, or a list of several")
    one.add_argument("--short", action="store_true", help="fewer sizes and rounds, several times in a row")
    one.add_argument(
        "--against", type=Path, metavar="FILE",
        help="repeat the benches that --short --json wrote here, and print what became slower beyond its noise",
    )  # fmt: skip
    one.set_defaults(run=bench)

    one = commands.add_parser(
        "schedule", help="Print a pipeline schedule.", description="Print a pipeline schedule, checked."
    )
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

    _add_chips_not_here(commands)
    one = commands.add_parser("terapipe-plan", help="Print the optimal token slicing of every case of a file.")
    one.add_argument("file", type=Path, metavar="FILE", help="JSON file of cases: tables, formulas, measured files")
    one.add_argument("--json", action="store_true", help="one JSON object: name, latency, scheme, seconds of each case")
    one.set_defaults(run=terapipe_plan)
    return top


def _add_chips_not_here(commands: Any) -> None:
    """Add the commands about chips that are not here.

    Args:
        commands: the subparsers of all commands.
    """
    one = commands.add_parser("compilers", help="Say which compilers for chips that are not here are installed.")
    one.set_defaults(run=compilers, install=())
    more = one.add_subparsers(metavar="install")
    each = more.add_parser("install", help="Install compilers into a folder of this project.")
    each.add_argument("install", nargs="+", metavar="KIND", choices=("gpu", "tpu"), help="gpu, tpu, or both")

    one = commands.add_parser("predict-steps", help="Predict published training steps with their chips' own compilers.")
    one.add_argument("file", type=Path, metavar="FILE", help="JSON file with a list of rows")
    one.add_argument("--json", action="store_true", help="one JSON object: id, seconds, low, high, peak_bytes, basis")
    one.set_defaults(run=predict_steps)

    one = commands.add_parser("adopt", help="Check a jitted step on chips that are not here, for a pull request.")
    one.add_argument("step", metavar="FILE.py::STEP", help="a jitted step; STEP_args are its arguments")
    one.add_argument("--chip", required=True, help="such as gpu_h100_sxm or tpu_v5p:4x4x8")
    one.add_argument("--mesh", metavar="AXIS=N,…", help="devices along each axis; default: as written")
    one.add_argument("--options", dest="preset", metavar="PRESET", help="compiler options, by the name of a preset")
    one.add_argument("--budget", metavar="memory=95GB,exposed=0.05", help="of a device, of a step")
    one.add_argument("--against", type=Path, metavar="FILE", help="what --save wrote before")
    one.add_argument("--save", type=Path, metavar="FILE", help="keep the answers")
    one.set_defaults(run=adopt)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line after the program's name; ``None`` means that of the process.

    Returns:
        The exit status.
    """
    options = parser().parse_args(arguments)
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
