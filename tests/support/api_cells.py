"""The twelve cells of the documentation, ``docs/guide/twelve_cells.md``, word for word."""

from __future__ import annotations

import re

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "guide" / "twelve_cells.md"
CELLS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
"""In order."""


def cell(number: int) -> str:
    """Return the source of a cell, counted from 1."""
    return CELLS[number - 1]
