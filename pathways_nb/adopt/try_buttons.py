"""Buttons that try a step without a constraint: each is replaced by what the change does, or by why it cannot be."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

from pathways_nb.adopt.constraints import Constraint
from pathways_nb.errors import PathwaysError


def try_buttons(rows: Sequence[Constraint], tried: Callable[[Constraint], object]) -> Any:
    """Return a widget with a button for each constraint.

    Args:
        rows: the constraints.
        tried: returns what a step is without one; its ``repr`` is shown.
    """
    # Imported here, because `import pathways_nb` loads no ipywidgets.
    import ipywidgets as w

    def row(one: Constraint) -> Any:
        button = w.Button(description="try without", tooltip=f"compile the step without {one.said}")
        box = w.HBox([button, w.Label(one.said)])

        def click(_: object) -> None:
            button.disabled, button.description = True, "compiling …"
            try:
                said = repr(tried(one))
            except PathwaysError as error:
                said = str(error)
            box.children = (w.HTML(html.escape(said)),)

        button.on_click(click)
        return box

    return w.VBox([row(one) for one in rows] or [w.Label("No constraint stands beside a flagged collective.")])
