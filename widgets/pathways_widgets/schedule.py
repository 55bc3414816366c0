"""Pictures of pipeline schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def show(schedule: Any, **times: Any) -> None:
    """Draw a schedule in a cell's output."""
    raise NotImplementedError


def write(schedule: Any, path: str | Path, width: str | float, **times: Any) -> None:
    """Write a schedule's picture as SVG or PNG."""
    raise NotImplementedError
