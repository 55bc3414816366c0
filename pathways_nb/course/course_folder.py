"""``python -m pathways_nb lab``: a copy of the course in a folder of the user's, opened in JupyterLab.

The copy is the user's own: a file that is there already is never written over.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from pathways_nb.errors import UsageError

FIRST = "01_quickstart.ipynb"
"""The notebook that is opened."""
_INSTALLED = Path(__file__).parent / "notebooks"
_CLONE = Path(__file__).parents[2] / "notebooks"


def copy_course(folder: Path) -> tuple[int, int]:
    """Copy the notebooks of the course into a folder that is made if it is missing.

    Returns:
        How many files were copied, and how many were there already and stay as they are.

    Raises:
        UsageError: the folder is a file, cannot be written, or is that of the course itself.
    """
    source = _INSTALLED if _INSTALLED.is_dir() else _CLONE
    if folder.resolve() == source.resolve():
        raise UsageError(f"lab {folder}: this is the course itself; name another folder for your copy.")
    copied = kept = 0
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if path.is_dir() or ".ipynb_checkpoints" in inside.parts:
            continue
        target = folder / inside
        if target.exists():
            kept += 1
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        except OSError as error:
            raise UsageError(f"lab {folder}: {target} cannot be written: {error}. Name another folder.") from error
        copied += 1
    return copied, kept


def open_lab(folder: Path, options: Sequence[str] = ()) -> NoReturn:
    """Become a JupyterLab that opens the first notebook of a copy of the course.

    Args:
        folder: the copy.
        options: further ones of JupyterLab, such as ``--no-browser``.
    """
    # JupyterLab refuses to run as root unless told; in a container there is often no other user.
    as_root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    command = [sys.executable, "-m", "jupyterlab", *as_root, *options, FIRST]
    os.chdir(folder)
    # In place of this process, so that Ctrl-C and other signals are JupyterLab's.
    os.execv(sys.executable, command)
