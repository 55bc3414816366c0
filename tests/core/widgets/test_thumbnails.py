"""Small timelines of many runs: a row for each, on one scale that begins at the first dispatch of each."""

from __future__ import annotations

import numpy as np

from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_widgets import thumbnails
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.scene import Rect, Text
from tests.core.widgets.fake_run import many_rows

F, G = (Label("compute", name, "p", node=node, island=node, devices=2) for node, name in enumerate("fg"))
SEND = Label("transfer", "x", "p", node=2, island=1, devices=2, bytes=8)


def run_of(*seconds: float, begin: float = 0.0) -> tuple[Events, tuple[int, ...]]:
    """A run in which f, the transfer and g take so long, one after another."""
    ends = begin + np.cumsum(seconds)
    enqueue = Row(Label("enqueue", "p", "p"), begin, begin)
    rows = [Row(label, end - lasts, end) for label, lasts, end in zip((F, SEND, G), seconds, ends, strict=True)]
    return Events.from_rows([Row(Label("compile", "f", "p"), begin - 5.0, begin), enqueue, *rows]), (2, 2)


def shapes(*runs: tuple[Events, tuple[int, ...]]) -> tuple[list[Rect], list[str]]:
    """The boxes and the texts of the still picture of runs called a, b, …"""
    figure = thumbnails(dict(zip("abcdef", runs, strict=False)), "a is fastest")
    scene = figure._still()  # type: ignore[misc]
    found = scene.shapes
    return [one for one in found if isinstance(one, Rect)], [one.text for one in found if isinstance(one, Text)]


def test_all_rows_have_one_scale_from_the_first_dispatch_of_each() -> None:
    rects, texts = shapes(run_of(1.0, 0.5, 2.0), run_of(2.0, 1.0, 4.0, begin=9.0))
    assert texts[0] == "a is fastest"
    assert {"a", "b", "computation", "transfer", "0 ms"} & {*texts} >= {"a", "b", "computation", "transfer"}
    first, second = rects[2:5], rects[5:8]  # after the legend
    starts = [{round(one.x, 6) for one in row if one.fill == palette.SKY} for row in (first, second)]
    assert min(starts[0]) == min(starts[1]), "both begin at their dispatch, compiled or not"
    widths = [sum(one.width for one in row) for row in (first, second)]
    assert abs(widths[1] / widths[0] - 2.0) < 1e-9
    assert max(one.y for one in first) < min(one.y for one in second), "row below row"


def test_islands_are_bands_of_their_row_and_transfers_are_below_them() -> None:
    rects, _ = shapes(run_of(1.0, 0.5, 2.0))
    by_fill = {one.fill: [] for one in rects[2:]}
    for one in rects[2:]:
        by_fill[one.fill].append(one.y)
    (transfer,), islands = by_fill[palette.PURPLE], sorted(by_fill[palette.SKY])
    assert islands[0] < islands[1] < transfer


def test_very_many_events_are_few_boxes_that_keep_how_busy_a_row_is() -> None:
    events = Events.from_rows(many_rows(40_000))
    rects, _ = shapes((events, (4, 4)))
    assert 10 < len(rects) < 500
    busy = sum(one.width for one in rects[1:] if one.fill == palette.SKY)
    assert busy > 0


def test_a_run_without_work_has_an_empty_row() -> None:
    rects, texts = shapes(run_of(1.0, 0.5, 2.0), (Events.from_rows([]), (2,)))
    assert len(rects) == 2 + 3
    assert "b" in texts


def test_a_figure_says_which_runs_it_has_and_has_colours_for_both_themes() -> None:
    figure = thumbnails({"n=1": run_of(1.0, 0.5, 2.0), "n=2": run_of(2.0, 1.0, 4.0)}, "n=1 is fastest")
    assert (figure.headline, repr(figure)) == ("n=1 is fastest", "2 runs on one scale: n=1, n=2")
    item = figure.json_item_with_data()
    assert set(item["themes"]) == {"light", "dark"}
    assert "CrosshairTool" in str(item["doc"])
