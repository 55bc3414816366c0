"""The recorded texts that come with the package, made anew with both compilers installed: ``make records``.

They answer where no compiler is (``pathways_nb.adopt.recorded_step``). Their steps are those of notebooks, whose cells
are executed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbformat.v4 import new_code_cell

import pathways_datasets
from pathways_nb.notebook.demo import execute
from tests.support.chip_compilers import install_if_missing
from tests.support.executed_notebooks import FOLDER

NOTEBOOKS = ("12_your_step",)
"""Notebooks whose steps are recorded."""
RECORDS = Path(pathways_datasets.__path__[0]) / "recorded" / "steps"


def record(folder: Path) -> None:
    """Write the records of all notebooks into a folder."""
    for name in NOTEBOOKS:
        content = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        begin = (
            "from pathlib import Path\nfrom pathways_nb.adopt import recorded_step\n"
            # Kept in a variable: a context that nobody holds ends.
            f"_records = recorded_step.recording(Path({str(folder)!r}))\n_records.__enter__()"
        )
        content.cells.insert(0, new_code_cell(begin))
        execute(content, FOLDER)


def replace_with(made: Path, records: Path) -> None:
    """Put new records in the place of all old ones, and say how many there are.

    Args:
        made: folder of the new ones.
        records: folder of the old ones.
    """
    shutil.rmtree(records, ignore_errors=True)
    shutil.copytree(made, records)
    kept = sorted(records.iterdir())
    print(f"{len(kept)} texts, {sum(one.stat().st_size for one in kept) / 2**20:.1f} MiB in {records}")


if __name__ == "__main__":
    install_if_missing()
    with TemporaryDirectory() as name:
        record(Path(name))
        replace_with(Path(name), RECORDS)
