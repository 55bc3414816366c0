"""Shows a run in the output of a cell while it runs: a figure (``live``) and the thread that keeps it up to date."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from collections.abc import Callable, Sequence

from IPython.display import DisplayHandle

from pathways_nb.util.displaying import shows_figures
from pathways_widgets.drawing.views import RunLike
from pathways_widgets.figures.live import LiveFigure
from pathways_widgets.figures.output import embedding, put_out, show_still, tell_what_waits
from pathways_widgets.figures.panel import DEFAULT_SHOW, check_show
from pathways_widgets.figures.run_still import scene_of

_INTERVAL = 0.1
"""Seconds between two updates of a figure."""
_SHARE = 0.1
"""Largest share of one core that drawing may take while the run is in progress."""


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
        show_still(lambda: scene_of(self._run, self.views, at=self._at), self.figure.told)

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
