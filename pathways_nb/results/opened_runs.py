"""Ways to a run: by its name, from a file, from a dump of a compiler, and of a graph that did not run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.errors import UsageError
from pathways_nb.plan.graph import Graph
from pathways_nb.results import saved_run
from pathways_nb.results.dump_files import is_dump
from pathways_nb.results.executed_program import ExecutedProgram
from pathways_nb.results.named_runs import named_runs
from pathways_nb.results.opened_dump import open_dump
from pathways_nb.results.opened_trace import open_trace, trace_at
from pathways_nb.results.run import Run
from pathways_nb.trace.record import Record
from pathways_nb.util.words import a_type_of

_others: list[Callable[[Path], Any]] = []


def read_also(reads: Callable[[Path], Any]) -> None:
    """Register another kind of file for ``load``, of which later packages know what is in it.

    Args:
        reads: returns what is in a file, None if it is of another kind.
    """
    _others.append(reads)


runs: dict[str, Run] = named_runs
"""The newest run of each ``%%pathways --run NAME``, by name, until ``pw.reset()``."""


def load(
    path: str | Path,
    *,
    chip: str | PathLike[str] | Chip | None = None,
    module: str | int | None = None,
    kinds: Mapping[str, str] | None = None,
) -> Any:
    """Return a run that ``run.save`` wrote, what another tool recorded, or a launch of a program that XLA dumped.

    ``pw.load("a.run")`` reads a saved run, or the saved answers of an adopted step. ``pw.load("folder")`` opens what
    ``xla_dump_to`` wrote on any machine, for a GPU, a TPU or the CPU, and ``pw.load("file.txt", chip="gpu_h100_sxm")``
    one scheduled program, such as the text of ``compiled.as_text()``. The program did not run here: times are estimated
    from its schedule, for one device that stands for all, and the summary says between what. ``run.ops`` has its
    operations.

    ``pw.load("host.xplane.pb")`` opens a profile of any JAX program (or the folder that ``jax.profiler.trace`` was
    given), ``pw.load("trace.json.gz")`` a trace of XProf, Perfetto or PyTorch's profiler. Its kernels, collectives and
    copies are ``run.events``, each on a stream of a device, and ``run.ops``, by launch or step.

    Nothing in a file is executed, and only the parts of a run are unpacked.

    Args:
        path: path of the file or folder.
        chip: of a dump that does not say its chip, or another chip to price it for.
        module: of a dump of several programs, the name or the number of one; None for the one with the longest
            schedule. ``run.about["opened"]["modules"]`` lists them.
        kinds: of another tool's trace, patterns (regular expressions) of names and the kind of what they fit:
            ``"compute"``, ``"collective"`` or ``"transfer"``. They count before the kinds that are known.

    Raises:
        UsageError: the file is damaged, of another kind or of a newer version, with the reason; a dump has no scheduled
            program, or does not say its chip; a trace has nothing that ran on devices.
        FileNotFoundError: there is no such file.
    """
    if not isinstance(path, (str, Path)):
        raise UsageError(f"load({path!r}): {a_type_of(path)} is no path; write pw.load('a.run').")
    saved_else = (reads(Path(path)) for reads in _others if Path(path).is_file())
    made = next((one for one in saved_else if one is not None), None)
    trace = trace_at(Path(path)) if made is None else None
    if made is None and trace is None and is_dump(Path(path)):
        return open_dump(Path(path), chip, module)
    for name, value in (("chip", chip), ("module", module)):
        if value is not None:
            what = "a saved run" if trace is None else "a trace of what ran"
            raise UsageError(f"load({str(path)!r}, {name}={value!r}): this is {what}; {name}= is for dumps of XLA.")
    if trace is not None:
        return open_trace(trace, kinds)
    if kinds is not None:
        raise UsageError(f"load({str(path)!r}, kinds=…): this is a saved run; kinds= is for traces of other tools.")
    if made is not None:
        return made
    saved = saved_run.read(path)
    record = Record.of(saved.events)
    run = Run(saved.name, saved.islands, record, finished=True, stamps=saved.stamps, about=saved.about)
    run.ops, run.kept_log = saved.ops, saved.log
    run.ops.note = str(saved.about.get("ops", ""))
    run.set_programs(saved.programs)
    return run


def show_graph(graph: Graph) -> None:
    """Display a graph of which nothing has run, as IPython does with a traced program."""
    # A run of nothing: so there is one way to draw a graph.
    run = Run(graph.name, (), note=graph.sentence, finished=True)
    run.set_programs([ExecutedProgram(graph, {}, {})])
    run.show("graph")
