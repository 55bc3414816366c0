"""Live figures in a notebook: a widget that syncs state.

The kernel sends columns as state of the widget; the browser draws them and sends back only the visible part of the time
axis. No message needs an answer. That is why a figure appears and moves while its cell still runs: a first paint that
needed a round trip would wait in the queue of the busy kernel until the cell has ended. BokehJS comes from the
installed package, once per kernel, so nothing is loaded from a network.

Columns are encoded in ``packing``, views are put together in ``panel``, still pictures are in ``output``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from pathways_widgets.drawing.scene import Scene
from pathways_widgets.drawing.time_axis import last_end
from pathways_widgets.drawing.views import Moment, RunLike
from pathways_widgets.figures.bokeh_asset import BokehJS
from pathways_widgets.figures.output import (
    ITEM_TYPE,
    answer_while_busy,
    embedding,
    put_out,
    show_still,
)
from pathways_widgets.figures.packing import pack
from pathways_widgets.figures.page import drawing_script, page_of
from pathways_widgets.figures.panel import DEFAULT_SHOW, Panel, check_show, figure_of
from pathways_widgets.figures.selected_events import Selection
from pathways_widgets.timeline.event_filter import EventFilter

_HERE = Path(__file__).parent


class Figure(anywidget.AnyWidget):
    """A Bokeh item (see ``panel``) in a cell's output.

    Args:
        item: the item, with its properties.
        still: draws the same for viewers without scripts; ``None`` for no still picture.
        **traits: values of other traits.
    """

    _esm = drawing_script() + (_HERE / "live.js").read_text("utf-8")
    _item = traitlets.Unicode().tag(sync=True)
    _assets = traitlets.Unicode().tag(sync=True)
    _sources = traitlets.List(traitlets.Unicode()).tag(sync=True)
    _properties = traitlets.Unicode("{}").tag(sync=True)
    headline = traitlets.Unicode().tag(sync=True)
    """The sentence above the figure; empty for none."""
    summary = traitlets.Unicode().tag(sync=True)
    """The numbers behind it, below the figure."""
    view = traitlets.List(traitlets.Float()).tag(sync=True)
    """The visible part of the time axis, in seconds since the start of the run; empty for all of it."""

    brushed = traitlets.List(traitlets.Float()).tag(sync=True)
    """The selected part of the time axis, in seconds since the start of the run; empty for none."""
    chosen = traitlets.Dict().tag(sync=True)
    """The filter of the timeline, as in ``EventFilter.state``; empty for none."""
    totals = traitlets.Unicode().tag(sync=True)
    """The totals of the selected part, as text."""
    description = traitlets.Unicode().tag(sync=True)
    """Description of the figure for screen readers; the summary if it is empty."""
    _call = traitlets.Unicode().tag(sync=True)
    """What "copy this view" writes before the view, such as ``run.show("timeline", at="``; empty for no such button."""
    view_beside = traitlets.Unicode().tag(sync=True)
    """The part of the view that is not in the figure but beside it, such as ``step=3`` of a player."""
    _at = traitlets.Unicode().tag(sync=True)
    """The view at which the figure opens; empty for all of it."""
    _has_page = traitlets.Bool(False).tag(sync=True)
    """Whether the kernel makes a page of the figure when it gets a message with a view."""

    def __init__(self, item: dict[str, Any], still: Callable[[], Scene] | None = None, **traits: Any):
        self._still = still
        bare = {name: part for name, part in item.items() if name != "properties"}
        properties = json.dumps(item.get("properties", {}))
        super().__init__(_item=json.dumps(bare), _properties=properties, _assets=BokehJS.get().model_id, **traits)

    def offer_view(self, call: str, at: str = "") -> None:
        """Let "copy this view" write a call, such as ``run.show("timeline", at="``, with the view behind it.

        Args:
            call: the call.
            at: the view at which the figure opens.
        """
        self._call, self._at = call, at

    def json_item_with_data(self) -> dict[str, Any]:
        """Return the item in its present state, with its data, for a page without a kernel."""
        return json.loads(self._item) | {"properties": json.loads(self._properties)}

    @property
    def told(self) -> str:
        """The figure as a person would tell it: its sentence, then its description, or the numbers behind it."""
        return ". ".join(filter(None, (self.headline, self.description or self.summary)))

    def bundle(self) -> dict[str, Any]:
        """Return the cell's output: the widget and its text, and the item as well while a page is being made."""
        found = self._repr_mimebundle_()
        widget = dict(found[0] if isinstance(found, tuple) else found or {}) | {"text/plain": repr(self)}
        return widget | {ITEM_TYPE: self.json_item_with_data()} if embedding() else widget

    def _ipython_display_(self) -> None:
        put_out(self.bundle(), widget=self)
        if self._still is not None:
            show_still(self._still, self.told)

    def __repr__(self) -> str:
        return self.summary


class LiveFigure(Figure):
    """The views named in ``show`` of one run, kept up to date by ``push``.

    Args:
        run: what to draw.
        show: names of views.
        at: the view at which it opens, which ``viewpoint.split_view`` has checked; empty for all of it.
    """

    def __init__(self, run: RunLike, show: Sequence[str] = DEFAULT_SHOW, at: str = ""):
        self._run = run
        self._show = check_show(show)
        self._lock = threading.RLock()
        self._moment: Moment | None = None
        self._panel = Panel(self._show, run.islands, run.island_names)
        # A trait for each table, so that a table that did not change is not sent again.
        names = list(self._panel.sources)
        self.add_traits(**{f"_data_{name}": traitlets.Bytes().tag(sync=True) for name in names})
        super().__init__(self._panel.item(data=False), _sources=names, _at=at)
        self._has_page = True
        self.on_msg(self._send_page)
        answer_while_busy(self.comm)
        self.observe(self._draw_window, ["view", "chosen"])
        self.observe(self._add_up, ["brushed", "chosen"])

    def push(self) -> bool:
        """Send what changed since the last push.

        Returns:
            Whether there was anything new.
        """
        with self._lock:
            moment = Moment.of(self._run)
            # Nothing new means no message: a run that waits must not keep the browser busy.
            if self._moment is not None and moment.version == self._moment.version:
                return False
            if moment.islands != self._panel.islands:
                # Lanes are laid out for given islands; an island that was added needs another figure.
                self._panel = Panel(self._show, moment.islands, moment.island_names)
                # The browser makes its models anew when this changes.
                self._item = json.dumps(self._panel.item(data=False))
            self._draw(moment)
            self._moment = moment
            return True

    @property
    def selection(self) -> Selection | None:
        """What is selected: a range, by the tool "Totals", and what the filter leaves; ``None`` if it is everything.

        Set it to a selection, of any run, to show the same here, or to ``None`` to show everything.
        """
        chosen = EventFilter.of_state(self.chosen)
        if len(self.brushed) != 2:
            return None if chosen == EventFilter() else Selection.of(self._run, None, chosen)
        # A range may be dragged from right to left.
        return Selection.of(self._run, (min(self.brushed), max(self.brushed)), chosen)

    @selection.setter
    def selection(self, selected: Selection | None) -> None:
        self.chosen = {} if selected is None else selected.chosen.state
        self.brushed = [] if selected is None or selected.is_whole else [selected.start, selected.end]

    def select(self, start: float | None = None, end: float | None = None, **conditions: Any) -> Selection | None:
        """Select in the picture.

        Args:
            start: begin of the range, in seconds since the run began; ``None`` with ``end``: all of the run.
            end: its end.
            **conditions: ``client``, ``program``, ``place`` and ``kind``, one word or several; ``shortest`` and
                ``longest``, in seconds; ``text``, part of a name. All that are given must hold (``EventFilter``).

        Returns:
            The selection; ``None`` if nothing was given.

        Raises:
            ValueError: a condition or a kind is unknown, or a range is none.
        """
        made = EventFilter.of(**conditions)
        span = None
        if start is not None or end is not None:
            span = (0.0 if start is None else float(start), last_end(self._run.events) if end is None else float(end))
            if not span[0] < span[1]:
                raise ValueError(f"select({span[0]}, {span[1]}): the range must end after it begins (seconds).")
        self.selection = Selection.of(self._run, span, made)
        return self.selection

    def json_item_with_data(self) -> dict[str, Any]:
        """Return the item of the run in its present state, with its data, for a page without a kernel."""
        with self._lock:
            return figure_of(self._run, self._show)

    def _send_page(self, _: object, asked: dict[str, Any], buffers: object) -> None:
        """Send the browser a page that opens at a view; one kept in the widget's state would be stored with it."""
        if "page" in asked:
            text = page_of(self._run, self._show, asked["page"])
            self.send({"name": f"{self._run.name}.html"}, [text.encode("utf-8", "backslashreplace")])

    def _draw(self, moment: Moment) -> None:
        """Draw a moment and send its columns, all in one message."""
        window = (self.view[0], self.view[1]) if len(self.view) == 2 else None
        self._panel.choose(EventFilter.of_state(self.chosen))
        self._panel.update(moment, window)
        with self.hold_sync():
            for name, columns in self._panel.sources.items():
                setattr(self, f"_data_{name}", pack(columns))
            self._properties = json.dumps(self._panel.properties)
            self.summary, self.headline = self._panel.summary, self._panel.headline

    def _add_up(self, change: object) -> None:
        """Compute the totals of the brushed range."""
        if hasattr(self._run, "view"):
            self._run.view = self  # of several figures of one run, the one brushed last
        # The kernel adds up, because the browser has merged boxes only.
        chosen = self.selection
        self.totals = "" if chosen is None else str(chosen)

    def _draw_window(self, change: object) -> None:
        """Draw for another visible part of the time axis."""
        with self._lock:  # the last moment: making a new one of a million events takes longer than drawing some
            self._draw(self._moment or Moment.of(self._run))
