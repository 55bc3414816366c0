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
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import anywidget
import bokeh
import traitlets
from IPython.display import DisplayHandle

from pathways_nb.util.displaying import marimo_notebook, shows_figures
from pathways_widgets.drawing.scene import Scene
from pathways_widgets.drawing.time_axis import last_end
from pathways_widgets.drawing.views import Moment, RunLike
from pathways_widgets.figures.output import (
    ITEM_TYPE,
    answer_while_busy,
    embedding,
    put_out,
    show_still,
    tell_what_waits,
)
from pathways_widgets.figures.packing import pack
from pathways_widgets.figures.page import bokeh_source, drawing_script
from pathways_widgets.figures.panel import DEFAULT_SHOW, Panel, check_show, figure_of
from pathways_widgets.figures.run_still import scene_of
from pathways_widgets.figures.selected_events import Selection
from pathways_widgets.timeline.event_filter import EventFilter

_HERE = Path(__file__).parent
_INTERVAL = 0.1
"""Seconds between two updates of a figure."""
_SHARE = 0.1
"""Largest share of one core that drawing may take while the run is in progress."""


class BokehJS(anywidget.AnyWidget):
    """Carries BokehJS from the installed package to the browser: one for each kernel, never displayed.

    Figures refer to it by id, so the script of about a megabyte is not sent again with each of them. Of an app that
    marimo runs, each page has a thread of this process and needs one of its own.
    """

    _esm = "export default {}"
    version = traitlets.Unicode(bokeh.__version__).tag(sync=True)
    src = traitlets.List(traitlets.Unicode()).tag(sync=True)
    _of_kernel: ClassVar[Any] = SimpleNamespace(only=None)
    _of_page: ClassVar[Any] = threading.local()

    @classmethod
    def get(cls) -> BokehJS:
        """Return the one of this kernel, or of this page of marimo's; a new one if it was closed."""
        in_marimo = marimo_notebook() is not None
        kept = cls._of_page if in_marimo else cls._of_kernel
        found: BokehJS | None = getattr(kept, "only", None)
        # A widget that was closed has no comm: figures could not find the script by its id.
        if found is None or found.comm is None:
            found = kept.only = cls(src=[bokeh_source()])
            if in_marimo:
                # marimo closes what a cell has made before it runs the cell again; figures of other cells need this.
                found.comm.close = lambda **_: None
        return found


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

    def __init__(self, item: dict[str, Any], still: Callable[[], Scene] | None = None, **traits: Any):
        self._still = still
        bare = {name: part for name, part in item.items() if name != "properties"}
        properties = json.dumps(item.get("properties", {}))
        super().__init__(_item=json.dumps(bare), _properties=properties, _assets=BokehJS.get().model_id, **traits)

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
    """

    def __init__(self, run: RunLike, show: Sequence[str] = DEFAULT_SHOW):
        self._run = run
        self._show = check_show(show)
        self._lock = threading.RLock()
        self._moment: Moment | None = None
        self._panel = Panel(self._show, run.islands, run.island_names)
        # A trait for each table, so that a table that did not change is not sent again.
        names = list(self._panel.sources)
        self.add_traits(**{f"_data_{name}": traitlets.Bytes().tag(sync=True) for name in names})
        super().__init__(self._panel.item(data=False), _sources=names, summary=run.summary_line())
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


class LiveDisplay:
    """Shows a run in the current cell's output and keeps it up to date until ``stop``; a script prints the summary.

    Args:
        run: what to show.
        show: names of views.
    """

    def __init__(self, run: RunLike, show: str | Sequence[str] = DEFAULT_SHOW):
        self.figure: LiveFigure | None = None
        self.views = check_show(show)
        self._run = run
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
            self.figure = LiveFigure(self._run, self.views)
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
        if embedding() and self._handle is not None:
            # A page that is made of the outputs has no kernel later: the data must be in the output itself.
            self._handle.update(self.figure.bundle(), raw=True)
        show_still(lambda: scene_of(self._run, self.views), self.figure.told)

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
