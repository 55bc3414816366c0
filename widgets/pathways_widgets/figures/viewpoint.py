"""A view of a figure as a text: what is zoomed to, selected, hidden and searched for, and the step of a player.

``viewpoint.js`` reads the text off a figure and brings a figure to it; ``run.show(at=…)`` and pages take it. It is
written like the query of an address, so that a page takes it behind ``#``: ``"time=0.001,0.002&pick=step%231"``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from pathways_nb.trace.rows import GAUGE_KINDS
from pathways_nb.util.json_text import shortened
from pathways_widgets.drawing.picked_rows import Picked
from pathways_widgets.drawing.views import Moment, Window, node_id
from pathways_widgets.figures.selected_events import Selection
from pathways_widgets.timeline.event_filter import EventFilter, is_hidden


class StillView(NamedTuple):
    """What a view shows of a run in a picture that nobody can zoom or click.

    Args:
        moment: with the events that the filter and the legend leave.
        window: the visible part of the time axis; ``None`` for that on which a picture opens.
        picked: what does not fade.
        brushed: the part of the time axis whose totals are told; ``None`` for none.
        totals: of the brushed part, or of what the filter leaves, in lines.
    """

    moment: Moment
    window: Window | None = None
    picked: Picked = Picked()
    brushed: Window | None = None
    totals: str = ""


class ViewPart(NamedTuple):
    """A part of a view.

    Args:
        needs: what its value is, in words.
        fits: whether a value is one.
    """

    needs: str
    fits: Callable[[str], bool]


def _numbers(count: int) -> Callable[[str], bool]:
    """Return whether a text is so many numbers."""

    def fits(text: str) -> bool:
        try:
            found = [float(word) for word in text.split(",")]
        except ValueError:
            return False
        return len(found) == count and all(map(math.isfinite, found))

    return fits


def _is_filter(text: str) -> bool:
    """Return whether a text is the state of a filter, as JSON."""
    try:
        EventFilter.of(**{name: value for name, value in json.loads(text).items() if value is not None})
    except (ValueError, TypeError, AttributeError, RecursionError):
        return False
    return True


_TEXT = ViewPart("a text", lambda text: True)
PARTS: Mapping[str, ViewPart] = {
    "time": ViewPart("two times in seconds, such as 0.001,0.002", _numbers(2)),
    "graph": ViewPart("the middle of the graph's visible part, and how often it is enlarged", _numbers(3)),
    "level": ViewPart("the number of a level of a graph of modules", str.isdecimal),
    "brush": ViewPart("two times in seconds, such as 0.001,0.002", _numbers(2)),
    "filter": ViewPart("the conditions of the filter", _is_filter),
    "pick": _TEXT,
    "hide": _TEXT,
    "find": _TEXT,
    "step": ViewPart("the number of a decision", str.isdecimal),
    "rule": _TEXT,
    "client": _TEXT,
}
"""The parts of a view by name; ``pick`` and ``hide`` may occur several times."""
PLAYER = ("step", "rule", "client")
"""What is set in a player of decisions, and not in the figure."""


def seen_at(moment: Moment, at: str) -> StillView:
    """Return what a view shows of a moment in a still picture: all but the visible part and the level of its graph.

    Args:
        moment: a run.
        at: the view, as ``split_view`` returns it.
    """
    parts = parse_qsl(at)
    given = dict(parts)
    hidden, ids = ({value for name, value in parts if name == which} for which in ("hide", "pick"))
    picked = Picked(frozenset(ids), given.get("find", "").strip().lower()).with_nodes(_nodes(moment))
    chosen = EventFilter.of_state(json.loads(given["filter"])) if "filter" in given else EventFilter()
    window, brushed = (_span(given.get(name, "")) for name in ("time", "brush"))
    totals = str(Selection.of(moment, brushed, chosen)) if brushed or chosen != EventFilter() else ""
    if chosen != EventFilter() or hidden:
        events = moment.events
        kept = chosen.keeps(events, moment.island_names) & ~is_hidden(events, hidden)
        moment = replace(moment, events=events.select(kept | events.is_("kind", *GAUGE_KINDS)))
    return StillView(moment, window, picked, brushed, totals)


def _span(text: str) -> Window | None:
    """Return a part of the time axis that is written as two times; ``None`` if there is nothing between them."""
    start, end = sorted(map(float, text.split(","))) if text else (0.0, 0.0)
    return (start, end) if start < end else None


def _nodes(moment: Moment) -> Iterator[tuple[str, str]]:
    """Yield name and id of what has boxes in graphs and timelines."""
    for program in moment.programs:
        yield from ((node.name, node_id(program.graph.name, node.id)) for node in program.graph.nodes)
    yield from ((label.name, node_id(label.program, label.node)) for label in moment.events.labels)


def split_view(at: str) -> tuple[str, dict[str, str]]:
    """Return the part of a view that its figure has, as text, and what is set in a player of decisions.

    Args:
        at: the view, as "copy this view" writes it; empty for none.

    Raises:
        ValueError: it is no view.
    """
    if not isinstance(at, str):
        raise ValueError(f"at={shortened(at)}: a text is needed, which 'copy this view' below a figure gives.")
    of_figure: list[tuple[str, str]] = []
    of_player: dict[str, str] = {}
    for name, value in parse_qsl(at, keep_blank_values=True):
        if name not in PARTS:
            said = f"at={shortened(at)}: a view has no part {shortened(name)}"
            raise ValueError(f"{said}; its parts are {', '.join(PARTS)}, written as time=0.001,0.002&step=3.")
        if not PARTS[name].fits(value):
            raise ValueError(f"at={shortened(at)}: {name}={shortened(value)} should be {PARTS[name].needs}.")
        if name in PLAYER:
            of_player[name] = value
        else:
            of_figure.append((name, value))
    return urlencode(of_figure, safe=","), of_player
