"""The front end that shows what cells display: IPython's kernel for Jupyter, or marimo. It is asked for here only.

Nothing is imported for the question: a front end that is in use has been imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_parts: ContextVar[list[Any] | None] = ContextVar("parts", default=None)
"""What is shown by the object with which a cell of marimo ends; None while the cell itself runs."""


def ipython_shell() -> Any:
    """Return IPython's shell; None if this process has none."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None


def execution_of_cell() -> tuple[str, str]:
    """Return the id of the cell that IPython's kernel runs, and the id of this run of it.

    Both are empty where the front end does not say them, and outside of a kernel.
    """
    parent: dict[str, Any] = getattr(ipython_shell(), "get_parent", dict)() or {}
    cell = parent.get("metadata", {}).get("cellId") or ""
    return str(cell), str(parent.get("header", {}).get("msg_id", "")) if cell else ""


def marimo_notebook() -> Any:
    """Return the module ``marimo`` where this thread runs a cell of a marimo notebook; None anywhere else."""
    marimo = sys.modules.get("marimo")
    return marimo if marimo is not None and marimo.running_in_notebook() else None


def shows_figures() -> bool:
    """Return whether what is displayed reaches a page; a script prints text instead."""
    return ipython_shell() is not None or marimo_notebook() is not None


def append_in_marimo(part: Any) -> None:
    """Show a part of a cell's output in marimo, where this thread runs a cell.

    Args:
        part: a widget of anywidget, or an element of marimo's.
    """
    parts = _parts.get()
    if parts is None:
        marimo_notebook().output.append(part)
    else:
        parts.append(part)


@contextmanager
def _collected() -> Iterator[list[Any]]:
    """Collect what is shown: a cell that has ended takes its value, and nothing that is appended."""
    parts: list[Any] = []
    token = _parts.set(parts)
    try:
        yield parts
    finally:
        _parts.reset(token)


class ShowsItself:
    """An object with a method ``show``, which is called where a cell ends with the object."""

    def _ipython_display_(self) -> None:
        self.show()  # type: ignore[attr-defined]

    def _display_(self) -> Any:
        """Return what marimo shows."""
        with _collected() as parts:
            self._ipython_display_()
        marimo = marimo_notebook()
        return marimo.vstack(parts) if parts else marimo.plain_text(repr(self))
