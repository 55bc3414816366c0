"""The figure of the player of decisions: a run's timeline in a cell's output, with a mark at one decision at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

from pathways_nb.controller.decisions import Decision
from pathways_widgets.drawing import style
from pathways_widgets.drawing.scene import Scene, Text
from pathways_widgets.drawing.still_frame import LIGHT, LINE
from pathways_widgets.drawing.still_text import text_width
from pathways_widgets.drawing.views import FULL_WIDTH, Columns, Moment, RunLike, Window
from pathways_widgets.figures.output import answer_while_busy
from pathways_widgets.figures.picture_figure import PictureFigure
from pathways_widgets.figures.run_still import HEADLINE, MARGIN, write_lines
from pathways_widgets.figures.selected_events import Selection
from pathways_widgets.timeline.decision_timeline import DecisionTimeline

Pointed = Decision | None | tuple[Decision | None, ...]
"""A decision, or one of each policy that is compared."""


class DecisionFigure(PictureFigure[RunLike]):
    """A run's timeline, with a mark at one decision of its controller, or of each of two that are compared.

    Args:
        run: what to draw, as it is now.
        names: of the policies that decide, if there are several.
    """

    def __init__(self, run: RunLike, names: Sequence[str] = ()):
        self._lock = threading.RLock()
        self._decisions: Sequence[Decision | None] = ()
        self._names = names
        moment = Moment.of(run)
        super().__init__(moment, DecisionTimeline(moment.islands, names=moment.island_names))
        answer_while_busy(self.comm)
        self.observe(self._draw_window, "view")
        self.observe(self._add_up, "brushed")

    def sentence(self, picture: RunLike) -> str:
        """Return the decision in one sentence; of none, that of the run."""
        return sentence_of(self._decisions, self._names) or picture.headline()

    def words(self, picture: RunLike) -> str:
        """Return the same, for screen readers."""
        return f"{picture.name}: {self.sentence(picture)}"

    def draw(self, picture: RunLike, *pointed: Pointed) -> None:
        """Point at another decision; the run that is drawn stays."""
        self.point(*pointed)

    def point(self, pointed: Pointed) -> None:
        """Point at one decision, at one of each policy, or at none."""
        with self._lock, self.hold_sync():
            self._decisions = pointed if isinstance(pointed, tuple) else (pointed,)
            self._send_columns(self.drawing.point(*self._decisions))
            self.headline, self.description = self.sentence(self._picture), self.words(self._picture)

    def _whole(self) -> dict[str, Columns]:
        """Return the columns of all of the time axis."""
        with self._lock:
            return dict(self.drawing.update(self._picture))

    @property
    def _window(self) -> Window | None:
        """The visible part of the time axis; ``None`` for all of it."""
        return (self.view[0], self.view[1]) if len(self.view) == 2 else None

    def _draw_window(self, change: object) -> None:
        """Draw for another visible part of the time axis."""
        with self._lock, self.hold_sync():
            self._send_columns(self.drawing.update(self._picture, self._window))
            self._properties = json.dumps(self.drawing.properties)

    def _add_up(self, change: object) -> None:
        """Compute the totals of the brushed range."""
        self.totals = (
            str(Selection.of(self._picture, (min(self.brushed), max(self.brushed)))) if len(self.brushed) == 2 else ""
        )


def sentence_of(decisions: Sequence[Decision | None], names: Sequence[str] = ()) -> str:
    """Return a decision in one sentence, or those of several policies; empty for none."""
    if not any(decisions):
        return ""
    if not names:
        return " ".join(f"{one.chosen} — {one.why}" for one in decisions if one)
    said = [one.chosen if one else "no more decisions" for one in decisions]
    if len({*said}) == 1:
        who = f"{' and '.join(names)} alike" if len({*names}) > 1 else f"{names[0]}, both times"
        return f"{who}: {said[0]}"
    return " — ".join(f"{name}: {one}" for name, one in zip(names, said, strict=True))


def scene_of_decisions(
    run: RunLike,
    decisions: Sequence[Decision | None],
    tables: Sequence[Sequence[Sequence[str]]],
    names: Sequence[str] = (),
    width: float = FULL_WIDTH,
) -> Scene:
    """Return a run's timeline with one decision, or one of each policy, and what is said of it, as shapes.

    Args:
        run: what to draw.
        decisions: what to point at; None for nothing.
        tables: what is said of the decisions, as cells of rows.
        names: of the policies, if there are several.
        width: width in pixels.
    """
    moment, scene = Moment.of(run), Scene(width, 0.0, LIGHT["background"])
    write_lines(scene, sentence_of(decisions, names) or moment.headline(), HEADLINE * style.current().factor, "text")
    view = DecisionTimeline(moment.islands, names=moment.island_names)
    view.update(moment)
    view.point(*decisions)
    shapes, height = view.still(moment, width, scene.height)
    scene.shapes += shapes
    scene.height += height
    font, line = style.current().font, LINE * style.current().factor
    for rows in tables:
        left = MARGIN
        for column in zip(*rows, strict=True):
            scene.shapes += [
                Text(left, scene.height + (row + 0.5) * line, cell, font, LIGHT["text"])
                for row, cell in enumerate(column)
            ]
            left += max(text_width(cell, font) for cell in column) + font
        scene.height += (len(rows) + 0.5) * line
    return scene
