"""Runs that are there without a recording: by their names, from files, and of a graph of which nothing ran."""

from __future__ import annotations

from pathlib import Path

from pathways_nb.errors import UsageError
from pathways_nb.plan.graph import Graph
from pathways_nb.results import saved_run
from pathways_nb.results.executed_program import ExecutedProgram
from pathways_nb.results.run import Run
from pathways_nb.trace.record import Record
from pathways_nb.util.words import a_type_of


class _Runs(dict[str, "Run"]):
    """The runs by name; an unknown name is an error that lists the known ones."""

    def __missing__(self, name: str) -> Run:
        known = ", ".join(map(repr, self)) or "none yet"
        raise UsageError(f"pw.runs[{name!r}]: there is no run of that name. Known: {known}; see %%pathways --run NAME.")


runs: dict[str, Run] = _Runs()
"""The newest run of each ``%%pathways --run NAME``, by name, until ``pw.reset()``."""


def load(path: str | Path) -> Run:
    """Return a run that ``run.save`` wrote.

    Nothing in the file is executed, and only the parts of a run are unpacked.

    Args:
        path: path of the file.

    Raises:
        UsageError: the file is damaged, of another kind or of a newer version, with the reason.
        FileNotFoundError: there is no such file.
    """
    if not isinstance(path, (str, Path)):
        raise UsageError(f"load({path!r}): {a_type_of(path)} is no path; write pw.load('a.run').")
    saved = saved_run.read(path)
    record = Record.of(saved.events)
    run = Run(saved.name, saved.islands, record, finished=True, stamps=saved.stamps, about=saved.about)
    run.ops, run.kept_log = saved.ops, saved.log
    run.set_programs(saved.programs)
    return run


def show_graph(graph: Graph) -> None:
    """Display a graph of which nothing has run, as IPython does with a traced program."""
    # A run of nothing: so there is one way to draw a graph.
    run = Run(graph.name, (), note=repr(graph), finished=True)
    run.set_programs([ExecutedProgram(graph, {}, {})])
    run.show("graph")
