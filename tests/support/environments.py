"""Environments beside that of the tests, made with few packages; all others are found in that of the tests, behind them."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conftest import ROOT
from tests.support.waiting import LIMIT

SOURCES = (ROOT, ROOT / "widgets", ROOT / "datasets")


def outside() -> dict[str, str]:
    """Return the environment variables of a process that finds this project where it is installed."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def said(*command: str | Path) -> str:
    """Return what a command prints; it must succeed."""
    done = subprocess.run(
        [*map(str, command)], env=outside(), capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stderr[-3000:]}"
    return done.stdout


def pip(*arguments: str | Path) -> None:
    """Run the pip of this environment, for another one if it is named by ``--python``."""
    said(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def bare(folder: Path, *packages: str | Path) -> Path:
    """Return the interpreter of a new environment.

    Args:
        folder: of the environment.
        *packages: what is installed into it, as pip names it.
    """
    said(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    pip("--python", python, "install", *packages)
    return python


def behind(python: Path, sources: Sequence[Path] = SOURCES) -> None:
    """Let an interpreter find this project and, behind its own packages, those of this environment.

    Args:
        python: the interpreter of an environment that ``bare`` made.
        sources: where this project is; nothing if its wheel is installed.
    """
    (own,) = python.parent.parent.glob("lib/python*/site-packages")
    (own / "shared.pth").write_text("\n".join(map(str, (*sources, *site.getsitepackages()))))
