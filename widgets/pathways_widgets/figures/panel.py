"""Several views of one run in a column, and the Bokeh item that any page can embed.

A view that fails costs its own picture and a line of text, never the other views: the run continues, and most of what
the user wants to see is still there. An item is Bokeh's own JSON with three additions, which ``figure.js`` reads:
``summary`` (plain text), and ``themes`` and ``properties`` by model name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from bokeh.embed import json_item
from bokeh.layouts import column
from bokeh.models import Column, LayoutDOM
from bokeh.plotting import figure

from pathways_nb.util.json_text import shortened
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.time_axis import TIME_RANGE
from pathways_widgets.drawing.views import Columns, Moment, RunLike, View, Window, Words
from pathways_widgets.graph.graph_view import GraphView
from pathways_widgets.graph.module_view import ModuleView
from pathways_widgets.memory.memory_view import CategoryView, MemoryView
from pathways_widgets.timeline.compared_view import ComparedTimeline
from pathways_widgets.timeline.critical_view import CriticalTimeline
from pathways_widgets.timeline.event_filter import EventFilter
from pathways_widgets.timeline.op_view import OpTimeline
from pathways_widgets.timeline.timeline_view import Timeline

VIEWS: dict[str, Callable[[tuple[int, ...], tuple[str, ...]], View]] = {
    "graph": GraphView,
    # Only several runs have names.
    "timeline": lambda islands, names: (ComparedTimeline if names else Timeline)(islands, names=names),
    "critical": lambda islands, names: CriticalTimeline(islands, names=names),
    "ops": lambda islands, names: OpTimeline(islands, names=names),
    "modules": ModuleView,
    "memory": lambda islands, names: MemoryView(islands, names=names),
    "categories": lambda islands, names: CategoryView(islands, names=names),
}
_REPLACES = {"critical": "timeline", "ops": "timeline", "categories": "memory", "modules": "graph"}
"""Views that draw all of another one, and more."""
DEFAULT_SHOW = ("graph", "timeline")
OF_TWO_RUNS = ("timeline", "ops", "memory", "categories")
"""Views in which two runs are compared."""


def check_show(show: str | Sequence[str], known: Collection[str] = VIEWS) -> tuple[str, ...]:
    """Return the names of views, each known and named once.

    Args:
        show: ``"graph,timeline"`` or a list of names; ``"none"`` names none. ``"critical"`` is the timeline with its
            critical path, ``"ops"`` the one with the ops inside launches; either replaces ``"timeline"``.
            ``"categories"`` is memory divided by category and replaces ``"memory"``; ``"modules"`` is the graph of an
            adopted step's operations and replaces ``"graph"``.
        known: those that there are.

    Raises:
        ValueError: a name is not in ``known``, or both ``"critical"`` and ``"ops"`` are named.
    """
    if not isinstance(show, str | Sequence) or not all(isinstance(word, str) for word in show):
        raise ValueError(f"show={shortened(show)}: write names of views: {', '.join(known)} or none.")
    show = show if isinstance(show, str) else ",".join(show)
    words = [word.strip() for word in show.split(",")]
    names = tuple(dict.fromkeys(word for word in words if word not in ("", "none")))
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            what = "two runs have no common view" if name in VIEWS else "there is no view"
            said = f"show={shortened(show)}: {what} {shortened(name)}"
            raise ValueError(f"{said}; choose from {', '.join(known)} or none{meant}")
    # Both are the figure named ``timeline``, and a page finds its models by name.
    if {"critical", "ops"} <= {*names}:
        raise ValueError(f"show={shortened(show)}: 'critical' and 'ops' are both the timeline; choose one of them.")
    # Both would be the same figure twice, and models with one name.
    replaced = {_REPLACES[name] for name in names if name in _REPLACES}
    return tuple(name for name in names if name not in replaced)


class Panel:
    """The views named in ``show``, for runs on given islands.

    Args:
        show: names of views.
        islands: number of devices of each island.
        names: names of the islands; empty for numbers.
    """

    def __init__(self, show: Sequence[str], islands: tuple[int, ...], names: tuple[str, ...] = ()):
        self.islands, self._names = islands, names
        self.failures: dict[str, str] = {}
        self.views: dict[str, View] = {}
        for name in check_show(show):
            # A view that cannot even be made leaves the others as they are.
            self._guard(name, partial(self._make, name))
        roots = [view.root for view in self.views.values()]
        _pan_together(roots)
        self.root: Column = column(roots, sizing_mode="stretch_width")
        self.summary = self.headline = ""

    def update(self, moment: Moment, window: Window | None = None) -> None:
        """Bring all views up to ``moment``; a view that fails keeps its last columns.

        Args:
            moment: what to draw.
            window: the visible part of the time axis; ``None`` for all of it.
        """
        for name, view in self.views.items():
            self._guard(name, partial(view.update, moment, window))
        self.summary = "\n".join([moment.summary_line(), *self.failures.values()])
        # What could not be drawn is told above, too: the numbers may be folded.
        self.headline = "\n".join(filter(None, [moment.headline(), *self.failures.values()]))

    def choose(self, chosen: EventFilter) -> None:
        """Set which events the next update of a timeline draws, where there are more than a page has boxes for."""
        for view in self.views.values():
            if isinstance(view, Timeline):
                view.chosen = chosen

    @property
    def sources(self) -> dict[str, Columns]:
        """The columns of all views, by the name of the source."""
        return {name: columns for view in self.views.values() for name, columns in view.sources.items()}

    @property
    def properties(self) -> dict[str, dict[str, Any]]:
        """Model name -> properties that follow the data, of all views."""
        return {name: values for view in self.views.values() for name, values in view.properties.items()}

    @property
    def themes(self) -> dict[str, dict[str, dict[str, str]]]:
        """Theme -> model name -> property -> colour, of all views."""
        return palette.themed({name: values for view in self.views.values() for name, values in view.roles.items()})

    def item(self, data: bool) -> dict[str, Any]:
        """Return the item to embed.

        Args:
            data: whether it contains the current columns; a live figure sends them separately.
        """
        for view in self.views.values():
            for name, table in view.tables.items():
                # Words are sent as numbers to a live figure; a page without kernel gets Bokeh's own JSON, which has no
                # such columns.
                columns = {k: list(c) if isinstance(c, Words) else c for k, c in view.sources[name].items() if data}
                # Empty columns, not none: a glyph that names a column must find it.
                table.data = columns or {column: [] for column in table.data}
        item = dict(json_item(self.root))
        said = {"headline": self.headline, "summary": self.summary, "is_folded": True}
        return item | said | {"themes": self.themes, "properties": self.properties if data else {}}

    def _make(self, name: str) -> None:
        """Make one view."""
        self.views[name] = VIEWS[name](self.islands, self._names)

    def _guard(self, name: str, work: Callable[[], object]) -> None:
        """Call ``work``; keep its error as the text of the view ``name``."""
        try:
            work()
            self.failures.pop(name, None)
        except Exception as error:
            self.failures[name] = f"The {name} could not be drawn: {type(error).__name__}: {error}"


def _pan_together(roots: Sequence[LayoutDOM]) -> None:
    """Give all pictures over time the range of the first, so that they pan and zoom together."""
    figures = [root for root in roots if isinstance(root, figure)]
    over_time = [root for root in figures if root.x_range.name == TIME_RANGE]
    for root in over_time[1:]:
        # One range object: Bokeh then pans all of them without a script.
        root.x_range = over_time[0].x_range


def figure_of(run: RunLike, show: Sequence[str] = DEFAULT_SHOW) -> dict[str, Any]:
    """Return the item of ``run`` in its present state, with its data, for a page without a kernel."""
    panel = Panel(show, run.islands, run.island_names)
    panel.update(Moment.of(run))
    return panel.item(data=True)
