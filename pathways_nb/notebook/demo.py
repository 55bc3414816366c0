"""``python -m pathways_nb demo``: execute a notebook and store it as one self-contained page.

The kernel is a fresh one of the interpreter that runs the demo, whatever kernels are registered: a registered
``python3`` may belong to an environment without this package. The kernel is asked by ``PATHWAYS_EMBED_FIGURES=1`` to
publish each figure a second time as Bokeh JSON with its data (``FIGURE``). Those outputs go into the page and are
removed from the stored notebook, whose widgets carry the same data. ``demo_page`` lays out the page.
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
"""Seconds after which a cell counts as hanging."""


class DemoError(Exception):
    """The demo could not be made; the text says why and in which cell."""


class _ThisInterpreter(KernelSpecManager):
    """A kernel specification manager with one kernel: IPython in the interpreter that runs the demo."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return that kernel, whatever its name."""
        return KernelSpec(**get_kernel_dict())


class _Progress:
    """Progress on standard error: for each code cell its number, its first line and its duration."""

    def __init__(self, notebook: nbformat.NotebookNode):
        self.code = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
        self.current = -1
        self.began = self.cell_began = time.monotonic()

    def started(self, cell: nbformat.NotebookNode, cell_index: int) -> None:
        """Print a cell's number and first line; nbclient calls this before each cell, text cells included.

        Args:
            cell: the cell.
            cell_index: its position among all cells.
        """
        if cell_index in self.code:
            self.current, self.cell_began = cell_index, time.monotonic()
            first_line = cell.source.strip().partition("\n")[0][:70]
            self._say(f"[{self.number}/{len(self.code)}] {first_line}")

    def finished(self, **_: Any) -> None:
        """Print a cell's duration; nbclient calls this after each code cell."""
        now = time.monotonic()
        self._say(f"      {now - self.cell_began:.1f} s, {now - self.began:.1f} s in all")

    @property
    def number(self) -> int:
        """Number of the running code cell, from 1; 0 before the first."""
        return self.code.index(self.current) + 1 if self.current >= 0 else 0

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - a progress display


def demo(notebook: Path, out: Path) -> tuple[Path, Path]:
    """Execute a notebook in a fresh kernel and write the result twice into a folder.

    Args:
        notebook: path of an ``.ipynb`` file. It is only read; its cells run in its folder.
        out: the folder, made if missing; files of the notebook's name in it are replaced.

    Returns:
        The paths of the executed notebook and of one HTML page that needs no other file and no network.

    Raises:
        DemoError: no such notebook, not a notebook, ``out`` is its own folder, or a cell failed. After a failed cell
            the notebook is stored up to there, and the text names the cell and its line.
    """
    content = _read(notebook, out)
    out.mkdir(parents=True, exist_ok=True)
    executed, page = out / notebook.name, out / f"{notebook.stem}.html"
    page.unlink(missing_ok=True)  # a page of an earlier run must not be mistaken for this one's
    try:
        execute(content, notebook.resolve().parent)
        page.write_text(render(content, notebook.stem), encoding="utf-8")
    except DemoError as error:
        raise DemoError(f"{error}\nThe notebook up to that cell: {executed}") from error.__cause__
    finally:
        _drop_figures(content)
        nbformat.write(content, executed)
    return executed, page


def _read(notebook: Path, out: Path) -> nbformat.NotebookNode:
    """Return the notebook, refusing a folder in which the result would replace it.

    Raises:
        DemoError: no such file, not a notebook, or ``out`` is its folder.
    """
    if not notebook.is_file():
        raise DemoError(f"no notebook {notebook} (looked in {Path.cwd()}); name one with --notebook PATH.")
    # The executed notebook would be written over the one that is read.
    if out.resolve() == notebook.resolve().parent:
        raise DemoError(f"--out {out} is the notebook's own folder and would replace it; name another.")
    try:
        return nbformat.read(notebook, as_version=4)
    except (ValueError, nbformat.ValidationError) as error:
        raise DemoError(f"{notebook} is not a notebook: {error}") from error


def execute(content: nbformat.NotebookNode, folder: Path) -> None:
    """Execute all cells of ``content`` in place, in ``folder``.

    Raises:
        DemoError: a cell raised or hung, or the kernel died.
    """
    progress = _Progress(content)
    safer = {"transport_encryption": "auto"} if hasattr(AsyncKernelManager, "transport_encryption") else {}
    kernel = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=_ThisInterpreter(), **safer)
    client = NotebookClient(
        content,
        km=kernel,
        timeout=CELL_TIMEOUT,
        # A busy machine may take minutes to start a kernel.
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
    """Return the failing cell's number, the line of it that failed, and the error, in three lines."""
    where = f"code cell {progress.number} of {len(progress.code)}"
    numbers = re.findall(rf"Cell In\[{cell.execution_count}\], line (\d+)", strip_ansi(error.traceback))
    lines = cell.source.splitlines()
    # The last of the cell's frames; a transformed cell may have more lines than its source.
    if numbers and int(numbers[-1]) <= len(lines):
        line = int(numbers[-1])
        where += f", line {line}: {lines[line - 1].strip()}"
    return f"{where}\n{error.ename}: {strip_ansi(error.evalue)}"


def _drop_figures(content: nbformat.NotebookNode) -> None:
    """Remove the figures' JSON from the outputs: the stored notebook has their data in its widgets already."""
    for cell in content.cells:
        for output in cell.get("outputs", []):
            # Outputs of streams have no data.
            output.get("data", {}).pop(FIGURE, None)
