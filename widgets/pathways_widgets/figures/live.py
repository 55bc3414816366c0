"""Live figures in a notebook: a widget that syncs state, and the thread that keeps it up to date during a cell.

The kernel sends columns as state of the widget; the browser draws them and sends back only the visible part of the time
axis. No message needs an answer. That is why a figure appears and moves while its cell still runs: a first paint that
needed a round trip would wait in the queue of the busy kernel until the cell has ended. BokehJS comes from the
installed package, once per kernel, so nothing is loaded from a network.

Columns are encoded in ``packing``, views are put together in ``panel``, still pictures are in ``output``.
"""

from __future__ import annotations

import contextvars
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from IPython.display import DisplayHandle

from pathways_nb.trace.causality.breakdown import Breakdown, breakdown
from pathways_nb.trace.metrics import duration
from pathways_nb.trace.record import Events
from pathways_nb.util.displaying import shows_figures
from pathways_nb.util.words import counted
from pathways_widgets.drawing.scene import Scene
from pathways_widgets.drawing.views import Moment, RunLike
from pathways_widgets.figures.bokeh_asset import BokehJS
from pathways_widgets.figures.output import (
    ITEM_TYPE,
    answer_while_busy,
    embedding,
    put_out,
    show_still,
    tell_what_waits,
)
from pathways_widgets.figures.packing import pack
from pathways_widgets.figures.page import drawing_script, page_of
from pathways_widgets.figures.panel import DEFAULT_SHOW, Panel, check_show, figure_of
from pathways_widgets.figures.run_still import scene_of

_HERE = Path(__file__).parent
_INTERVAL = 0.1
"""Seconds between two updates of a figure."""
_SHARE = 0.1
"""Largest share of one core that drawing may take while the run is in progress."""


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
        super().__init__(self._panel.item(data=False), _sources=names, summary=run.summary_line(), _at=at)
        self._has_page = True
        self.on_msg(self._send_page)
        answer_while_busy(self.comm)
        self.observe(self._draw_window, "view")
        self.observe(self._add_up, "brushed")

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
        """The brushed range: its events and the totals of each island; ``None`` if nothing is brushed."""
        # A range may be dragged from right to left.
        return Selection.of(self._run, *sorted(self.brushed)) if len(self.brushed) == 2 else None

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


@dataclass(frozen=True)
class Selection:
    """A selected range of a run's time axis.

    Args:
        start: in seconds since the run began.
        end: in seconds since the run began.
        events: the events that overlap the range.
        islands: for each island, the breakdown of its time within the range.
    """

    start: float
    end: float
    events: Events
    islands: list[Breakdown]

    @classmethod
    def of(cls, run: RunLike, start: float, end: float) -> Selection:
        """Return the selection from ``start`` to ``end`` of a run."""
        events = run.events
        # An event that is partly in the range counts; the breakdown cuts it at both ends.
        inside = events.select((events["end"] >= start) & (events["start"] <= end))
        return cls(start, end, inside, breakdown(events, run.islands, start, end))

    def __str__(self) -> str:
        head = f"{duration(self.start)} to {duration(self.end)}, {counted(len(self.events), 'event')}"
        return "\n".join([head, *map(str, self.islands)])


class LiveDisplay:
    """Shows a run in the current cell's output and keeps it up to date until ``stop``; a script prints the summary.

    Args:
        run: what to show.
        show: names of views.
        at: the view at which the figure opens, as for ``LiveFigure``.
        called: returns how the user calls the run in Python, for "copy this view"; ``None`` if there is no such call.
    """

    def __init__(
        self,
        run: RunLike,
        show: str | Sequence[str] = DEFAULT_SHOW,
        at: str = "",
        called: Callable[[], str] | None = None,
    ):
        self.figure: LiveFigure | None = None
        self.views = check_show(show)
        self._run, self._at, self._called = run, at, called
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._handle: DisplayHandle | None = None

    @property
    def is_live(self) -> bool:
        """Whether the user sees a figure while the run is in progress."""
        return self.figure is not None

    def start(self) -> None:
        """Display the figure and start the thread that updates it.

        Never raises: a cell must run even if its figure fails, which is then one line of text.
        """
        if not shows_figures():
            return
        try:
            self.figure = LiveFigure(self._run, self.views, self._at)
            self._name_call()
            self.figure.push()
            # After the first push, so that the first paint shows what there is already.
            bundle = self.figure.bundle()
            if not self._run.finished:
                # In a saved notebook this text stands where the figure was; the still picture comes when the run has
                # ended.
                bundle["text/plain"] = f"{self._run.name}: a live figure; the picture that follows is how it ended."
            self._handle = put_out(bundle, widget=self.figure)
            if not self._run.finished:
                tell_what_waits(self.figure.comm)
        except Exception as error:
            self._give_up(error)
            return
        follow = contextvars.copy_context().run  # keeps the thread's output in this cell
        self._thread = threading.Thread(target=follow, args=(self._follow,), name="pathways-figure", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Show the final state and end the thread; may be called again."""
        if self._ended.is_set():
            return
        self._ended.set()
        if not shows_figures():
            sys.stdout.write(f"{self._run.name}: {self._run.summary_line()}\n")
        if self._thread is None:
            return
        # The thread may be in the middle of an update, which must not come after the last one.
        self._thread.join()
        self._try_push()
        if self.figure is None:
            return
        self._name_call()  # `with pw.record() as run:` has assigned it only now
        if embedding() and self._handle is not None:
            # A page that is made of the outputs has no kernel later: the data must be in the output itself.
            self._handle.update(self.figure.bundle(), raw=True)
        show_still(lambda: scene_of(self._run, self.views), self.figure.told)

    def _name_call(self) -> None:
        """Tell the figure by which call it is shown again."""
        if self.figure is not None and self._called is not None:
            self.figure.offer_view(f'{self._called()}.show("{",".join(self.views)}", at="', self._at)

    def _follow(self) -> None:
        """Update the figure until ``stop``; pauses grow with the CPU time of an update, to keep within ``_SHARE``."""
        pause = _INTERVAL
        while not self._ended.wait(pause):
            began = time.thread_time()
            self._try_push()
            # CPU time of this thread only: waiting for the busy kernel is no reason to draw less often.
            pause = max(_INTERVAL, (time.thread_time() - began) / _SHARE)

    def _try_push(self) -> None:
        """Update the figure; on an error replace it by a line of text."""
        if self.figure is None:
            return
        try:
            self.figure.push()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Replace the figure by the error and the summary."""
        self.figure = None
        text = f"The figure could not be drawn: {type(error).__name__}: {error}\n{self._run.summary_line()}"
        put_out({"text/plain": text})
