"""Executes a notebook and leaves it as one self-contained page: ``python -m pathways_nb demo``.

The kernel is a fresh one of this interpreter, whatever kernels are registered. It is asked, by
``PATHWAYS_EMBED_FIGURES=1``, to publish each figure once more as Bokeh JSON with its data (``FIGURE``); those go
into the page and are taken out of the stored notebook, whose widgets carry the same data. The page itself is
laid out by ``pathways_nb.notebook.demo_page``.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert.filters import strip_ansi

from pathways_nb.notebook.demo_page import FIGURE, render

CELL_TIMEOUT = 900
"""Seconds after which a cell is taken to be stuck."""


class DemoError(Exception):
    """The demo could not be made; the text says why and where."""


class _ThisInterpreter(KernelSpecManager):
    """Knows one kernel: IPython in the interpreter that runs the demo."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """The kernel, under any name."""
        return KernelSpec(**get_kernel_dict())


class _Progress:
    """One line on standard error per code cell: which, how long, and how it begins."""

    def __init__(self, notebook: nbformat.NotebookNode):
        self.code = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
        self.current = -1
        self.began = self.cell_began = time.monotonic()

    def started(self, cell: nbformat.NotebookNode, cell_index: int) -> None:
        """Called by nbclient before each cell, text cells included."""
        if cell_index in self.code:
            self.current, self.cell_began = cell_index, time.monotonic()
            first_line = cell.source.strip().partition("\n")[0][:70]
            self._say(f"[{self.number}/{len(self.code)}] {first_line}")

    def finished(self, **_: Any) -> None:
        """Called by nbclient after each code cell."""
        now = time.monotonic()
        self._say(f"      {now - self.cell_began:.1f} s, {now - self.began:.1f} s in all")

    @property
    def number(self) -> int:
        """Which code cell is running, from 1; 0 before the first."""
        return self.code.index(self.current) + 1 if self.current >= 0 else 0

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - a progress display


def demo(notebook: Path, out: Path) -> tuple[Path, Path]:
    """Execute ``notebook`` in a fresh kernel and write the result twice into the folder ``out``.

    Args:
        notebook: an ``.ipynb`` file; it is only read, and its cells run in its folder.
        out: made if missing; files of the notebook's name there are replaced.

    Returns:
        The executed notebook, and one HTML page that needs nothing else and no network.

    Raises:
        DemoError: no such notebook, not a notebook, ``out`` is its own folder, or a cell failed
            (the cells up to there are stored then, and the text names the cell and its line).
    """
    content = _read(notebook, out)
    out.mkdir(parents=True, exist_ok=True)
    executed, page = out / notebook.name, out / f"{notebook.stem}.html"
    page.unlink(missing_ok=True)  # an old page must not pass for this run's
    try:
        _execute(content, notebook.resolve().parent)
        page.write_text(render(content, notebook.stem), encoding="utf-8")
    except DemoError as error:
        raise DemoError(f"{error}\nThe notebook up to that cell: {executed}") from error.__cause__
    finally:
        _drop_figures(content)
        nbformat.write(content, executed)
    return executed, page


def _read(notebook: Path, out: Path) -> nbformat.NotebookNode:
    if not notebook.is_file():
        raise DemoError(f"no notebook {notebook} (looked in {Path.cwd()}); name one with --notebook PATH.")
    if out.resolve() == notebook.resolve().parent:
        raise DemoError(f"--out {out} is the notebook's own folder and would replace it; name another.")
    try:
        return nbformat.read(notebook, as_version=4)
    except (ValueError, nbformat.ValidationError) as error:
        raise DemoError(f"{notebook} is not a notebook: {error}") from error


def _execute(content: nbformat.NotebookNode, folder: Path) -> None:
    progress = _Progress(content)
    kernel = AsyncKernelManager(
        kernel_name="python3", kernel_spec_manager=_ThisInterpreter(), transport_encryption="auto"
    )
    client = NotebookClient(
        content,
        km=kernel,
        timeout=CELL_TIMEOUT,
        startup_timeout=CELL_TIMEOUT,
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=progress.started,
        on_cell_executed=progress.finished,
    )
    try:
        client.execute(env=os.environ | {"PATHWAYS_EMBED_FIGURES": "1"}, cleanup_kc=True)
    except CellExecutionError as error:
        raise DemoError(_describe(error, content.cells[progress.current], progress)) from error
    except CellTimeoutError as error:
        raise DemoError(f"code cell {progress.number} was still running after {CELL_TIMEOUT} seconds.") from error
    except DeadKernelError as error:
        raise DemoError(f"the kernel died in code cell {progress.number} of {len(progress.code)}.") from error


def _describe(error: CellExecutionError, cell: nbformat.NotebookNode, progress: _Progress) -> str:
    """The failing cell's number, the line of it that failed, and the error, in three lines."""
    where = f"code cell {progress.number} of {len(progress.code)}"
    numbers = re.findall(rf"Cell In\[{cell.execution_count}\], line (\d+)", strip_ansi(error.traceback))
    lines = cell.source.splitlines()
    if numbers and int(numbers[-1]) <= len(lines):
        line = int(numbers[-1])
        where += f", line {line}: {lines[line - 1].strip()}"
    return f"{where}\n{error.ename}: {strip_ansi(error.evalue)}"


def _drop_figures(content: nbformat.NotebookNode) -> None:
    for cell in content.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(FIGURE, None)
