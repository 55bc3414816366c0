"""Marks: what they draw of a table, as shapes and as Bokeh's glyphs; ``tests/browser`` holds both against each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from bokeh.models import ColumnDataSource
from bokeh.plotting import figure

from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.box_marks import NARROWEST, BoxMark, CardMark
from pathways_widgets.drawing.line_marks import AreaMark, LineMark, PathMark, SpanMark
from pathways_widgets.drawing.picture_marks import Column, PictureMark, Role, draw, shapes_of, theme_roles
from pathways_widgets.drawing.point_marks import FONT, DotMark, TextMark
from pathways_widgets.drawing.scene import Curve, Polygon, Rect, Text
from pathways_widgets.drawing.still_frame import Frame

FRAME = Frame(100.0, 200.0, 10.0, 60.0, across=(0.0, 10.0), up=(5.0, 0.0))
"""A plot of 100 × 50 pixels: ten for each unit of both axes, y downwards."""


def boxes(*sides: tuple[float, float, float, float]) -> dict[str, Any]:
    return {name: [box[i] for box in sides] for i, name in enumerate(("left", "right", "top", "bottom"))}


def drawn(mark: PictureMark, rows: dict[str, Any]) -> list[Any]:
    return list(mark.shapes(rows, FRAME))


def test_boxes_are_where_their_columns_say_in_the_colours_of_their_rows() -> None:
    rows = boxes((1, 3, 0, 2), (4, 5, 1, 2)) | {"kind": np.array([1, 0])}
    first, second = drawn(BoxMark(fill=Column("kind", ("red", "blue")), line="black"), rows)
    assert (first.x, first.y, first.width, first.height, first.fill) == (110, 10, 20, 20, "blue")
    assert (second.x, second.y, second.width, second.height, second.fill) == (140, 20, 10, 10, "red")
    assert drawn(BoxMark(top="left", bottom=0, fill="red"), boxes((1, 3, 9, 9)))[0].height == 10


def test_boxes_are_cut_at_the_plot_and_a_narrow_one_stays_visible() -> None:
    inside, narrow = drawn(BoxMark(fill="red"), boxes((-5, 2, -1, 9), (11, 12, 0, 1), (4, 4, 0, 1)))
    assert (inside.x, inside.y, inside.width, inside.height) == (100, 10, 20, 50)
    assert narrow.width == NARROWEST


def test_what_nobody_can_see_has_no_shape() -> None:
    assert not drawn(BoxMark(), boxes((1, 2, 0, 1)))
    assert not drawn(BoxMark(fill="red"), boxes((1, 2, 1, 1), (math.nan, 2, 0, 1)))
    assert not drawn(LineMark(), {"x0": [1], "y0": [1], "x1": [2], "y1": [2]})
    assert not drawn(LineMark(line="red"), {"x0": [math.nan], "y0": [1], "x1": [2], "y1": [2]})
    assert not drawn(TextMark(), {"x": [1, 99], "y": [1, 1], "text": ["", "outside"]})


def test_a_border_in_the_colour_of_the_fill_only_closes_seams_of_a_canvas() -> None:
    (box,) = drawn(BoxMark(fill="red", line="red"), boxes((1, 2, 0, 1)))
    assert box.line == ""


def test_cards_are_around_their_centres() -> None:
    (card,) = drawn(CardMark(width=2.0, fill="red", radius=5.0), {"x": [5], "y": [2], "height": [1]})
    assert (card.x, card.y, card.width, card.height, card.radius) == (140, 25, 20, 10, 5)


def test_lines_of_a_text_are_around_its_position_or_above_it() -> None:
    rows = {"x": [5], "y": [2], "text": ["one\ntwo"], "lift": [3.0], "align": ["left"]}
    lines = drawn(TextMark(align=Column("align"), lift=Column("lift")), rows)
    assert [line.text for line in lines] == ["one", "two"]
    assert {line.align for line in lines} == {"start"}
    assert sum(line.y for line in lines) / 2 == pytest.approx(33)
    assert lines[1].y - lines[0].y == pytest.approx(1.2 * lines[0].size)
    (above,) = drawn(TextMark(anchor="bottom"), rows | {"text": ["one"]})
    assert above.y == pytest.approx(30 - above.size / 2)


@pytest.mark.parametrize(("shape", "corners"), [("arrow", 3), ("diamond", 4)])
def test_dots_with_corners_are_polygons_whose_border_is_a_larger_one_below(shape: Any, corners: int) -> None:
    edge, inside = drawn(DotMark(shape=shape, size=8.0, fill="red", line="black"), {"x": [5], "y": [2]})
    assert isinstance(edge, Polygon)
    assert (edge.fill, inside.fill) == ("black", "red")
    assert len(inside.points) == corners
    assert max(x for x, _ in edge.points) > max(x for x, _ in inside.points) == 154


def test_lines_spans_and_areas() -> None:
    (line,) = drawn(LineMark(line="red", line_width=Column("width"), dash=(6, 3)),
                    {"x0": [0], "y0": [1], "x1": [10], "y1": [1], "width": [2.5]})  # fmt: skip
    assert line == Curve(((100, 20), (200, 20)), "red", 2.5, False, 6, 3)
    (span,) = drawn(SpanMark(line="red"), {"y": [3]})
    assert span.points == ((100, 40), (200, 40))
    areas = drawn(AreaMark(fill="red"), {"x": [0, 1, 1, math.nan, 2, 3, 3], "y": [0, 0, 1, math.nan, 0, 0, 1]})
    assert [len(area.points) for area in areas] == [3, 3]


def test_a_role_is_the_light_theme_in_a_still_picture_and_follows_the_page_in_a_live_one() -> None:
    mark = TextMark(source="words", name="words_text", text_colour=Role("text"), background=Role("background"))
    (text,) = drawn(mark, {"x": [5], "y": [2], "text": ["one"]})
    assert (text.fill, text.background) == (palette.THEMES["light"]["text"], palette.THEMES["light"]["background"])
    assert theme_roles([mark]) == {"words_text": {"text_color": "text", "background_fill_color": "background"}}
    assert set(theme_roles([mark])["words_text"]) <= mark.glyph(style.current()).properties()


def test_both_ways_draw_all_marks_in_their_order() -> None:
    marks = (
        BoxMark(source="boxes", renderer="first", fill="red", is_dimmed=True, name="box"),
        SpanMark(source="spans", line="red"),
    )
    sources: dict[str, Any] = {"boxes": boxes((1, 2, 0, 1)), "spans": {"y": [1]}}
    fig = figure()
    renderers = draw(fig, marks, {name: ColumnDataSource(rows) for name, rows in sources.items()}, style.current())
    assert list(renderers.values()) == fig.renderers
    assert fig.renderers[0].nonselection_glyph.fill_alpha < 1
    assert (fig.renderers[0].name, fig.renderers[0].glyph.name, fig.renderers[0].nonselection_glyph.name) == (
        "first",
        "box",
        None,
    )
    assert [type(shape) for shape in shapes_of(marks, sources, FRAME)] == [Rect, Curve]
    assert [type(shape) for shape in shapes_of(marks, sources, FRAME, {"first": {"visible": False}})] == [Curve]


def test_sizes_follow_the_style() -> None:
    style.choose("projector")
    try:
        frame = Frame(0.0, 100.0, 0.0, 100.0, (0.0, 1.0), (1.0, 0.0))
        look = style.current()
        (text,) = TextMark().shapes({"x": [0.5], "y": [0.5], "text": ["a"]}, frame)
        assert isinstance(text, Text)
        assert TextMark().glyph(look).text_font_size == f"{text.size:g}px"
        (line,) = SpanMark(line="red", line_width=2.0).shapes({"y": [0.5]}, frame)
        assert isinstance(line, Curve)
        assert SpanMark(line="red", line_width=2.0).glyph(look).line_width == line.line_width == 2 * look.line
    finally:
        style.choose("screen")


def test_a_path_is_interrupted_by_rows_that_are_no_numbers_and_its_dashes_go_on_around_corners():
    frame = Frame(0.0, 40.0, 0.0, 40.0, (0.0, 4.0), (0.0, 4.0), line=1.0)
    rows = {"x": [0.0, 1.0, math.nan, 2.0, 3.0, 3.0, 4.0], "y": [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, math.nan]}
    first, second = PathMark(line="#000000", line_width=2.0, dash=(8, 4)).shapes(rows, frame)
    assert first.points == ((0.0, 40.0), (10.0, 40.0))
    assert second.points == ((20.0, 40.0), (30.0, 40.0), (30.0, 30.0))
    assert second.strokes() == [
        [(20.0, 40.0), (28.0, 40.0)],  # a dash, then a gap of four, of which two are around the corner
        [(30.0, 38.0), (30.0, 30.0)],
    ]


def test_a_text_may_be_moved_to_the_right_as_well():
    frame = Frame(0.0, 40.0, 0.0, 40.0, (0.0, 4.0), (0.0, 4.0), font=FONT)
    (text,) = TextMark(shift=-5.0, lift=3.0).shapes({"x": [2.0], "y": [2.0], "text": ["a"]}, frame)
    assert (text.x, text.y) == (15.0, 23.0)
    assert TextMark(shift=-5.0).glyph(style.STYLES["screen"]).x_offset == -5.0


def test_what_is_not_selected_fades_and_its_text_stays_readable() -> None:
    fig, tables = figure(), {"nodes": ColumnDataSource({"x": [1.0], "y": [1.0], "text": ["f"]})}
    draw(fig, (TextMark(source="nodes", is_dimmed=True),), tables, style.current())
    assert fig.renderers[0].nonselection_glyph.text_alpha == 1
