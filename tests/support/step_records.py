"""The recorded texts of adopted steps, all made anew with both compilers installed: ``make records``.

They answer where no compiler is (``pathways_nb.adopt.recorded_step``). A source is a notebook, whose cells are executed,
or a function of a test that returns adopted steps.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbformat.v4 import new_code_cell

import pathways_datasets
from pathways_nb.adopt import recorded_step
from pathways_nb.adopt.adopted_step import AdoptedStep
from pathways_nb.notebook.demo import execute
from tests.support.chip_compilers import install_if_missing
from tests.support.executed_notebooks import FOLDER

NOTEBOOKS = ("12_your_step",)
"""Notebooks whose steps are recorded."""
STEPS: tuple[Callable[[], Iterable[AdoptedStep]], ...] = ()
"""Functions that return steps to be recorded."""
RECORDS = Path(pathways_datasets.__path__[0]) / "recorded" / "steps"


def record(folder: Path) -> None:
    """Write the records of all sources into a folder."""
    with recorded_step.recording(folder):
        for steps in STEPS:
            for step in steps():
                step.collectives()
    for name in NOTEBOOKS:
        content = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        begin = (
            "from pathlib import Path\nfrom pathways_nb.adopt import recorded_step\n"
            # Kept in a variable: a context that nobody holds ends.
            f"_records = recorded_step.recording(Path({str(folder)!r}))\n_records.__enter__()"
        )
        content.cells.insert(0, new_code_cell(begin))
        execute(content, FOLDER)


if __name__ == "__main__":
    install_if_missing()
    with TemporaryDirectory() as name:
        record(Path(name))
        shutil.rmtree(RECORDS, ignore_errors=True)
        RECORDS.mkdir()
        for path in Path(name).iterdir():
            shutil.copy(path, RECORDS)
    kept = sorted(RECORDS.iterdir())
    print(f"{len(kept)} texts, {sum(one.stat().st_size for one in kept) / 2**20:.1f} MiB in {RECORDS}")
