"""What Chromium shows after live updates is what a still picture of the same tables has: boxes, texts, lines, order.

A view describes its marks once (``pathways_widgets.drawing.picture_marks``). Here a page follows a figure while its run goes
on; then the positions, colours and texts that Bokeh draws are read from the page, mark by mark, and compared with the
shapes of a still picture whose frame is where Bokeh's is. Colours are also read from the painted pixels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_widgets import LiveFigure
from pathways_widgets.drawing.box_marks import LOWEST, NARROWEST, BoxMark, CardMark
from pathways_widgets.drawing.line_marks import AreaMark, LineMark, SpanMark
from pathways_widgets.drawing.picture_marks import PictureMark
from pathways_widgets.drawing.point_marks import DotMark, TextMark
from pathways_widgets.drawing.scene import Curve, Polygon, Rect, Scene, Shape, Text
from pathways_widgets.drawing.still_frame import LABELS, LIGHT, RIGHT, Frame
from pathways_widgets.drawing.time_axis import TICKS, time_ticks
from pathways_widgets.drawing.views import FULL_WIDTH, Columns
from pathways_widgets.figures.run_still import scene_of
from pathways_widgets.graph.graph_view import MARKS as GRAPH_MARKS
from pathways_widgets.schedules.schedule_display import ScheduleFigure
from pathways_widgets.schedules.schedule_marks import SCHEDULE_MARKS
from pathways_widgets.schedules.schedule_still import scene_of_schedules
from pathways_widgets.shardings import sharding_display
from pathways_widgets.shardings.sharding_view import SHARDING_MARKS
from pathways_widgets.timeline.level_of_detail import PIXELS
from pathways_widgets.timeline.timeline_view import Timeline
from tests.core.widgets.fake_run import FakeRun, fake_run, many_events, memory_run, training_step
from tests.core.widgets.test_op_timeline import OPS, QUEUES, run_of
from tests.core.widgets.test_schedule_view import picture
from tests.core.widgets.test_timeline_clients import shared
from tests.support.live_page import LivePage

pytestmark = pytest.mark.browser

PLOT = """(name) => {
  const view = Bokeh.index.find_one(Bokeh.documents[0].get_model_by_name(name)), {left, right, top, bottom} = view.frame.bbox
  const {x_range, y_range} = view.model
  return {left, right, top, bottom, across: [x_range.start, x_range.end], up: [y_range.start, y_range.end]}
}"""
"""Script: where a figure's plot is on its canvas, and its ranges."""
DRAWN = """([name, count]) => Bokeh.documents[0].get_model_by_name(name).renderers.slice(0, count).map((renderer) => {
  const view = Bokeh.index.find_one(renderer), glyph = view?.glyph, visible = renderer.visible
  const kind = renderer.glyph.type, source = renderer.data_source.name
  if (!glyph || !visible) return {kind, source, visible, rows: []}
  const numbers = (...names) => names.map((one) => Array.from(glyph[one]))
  const columns = {
    Quad: () => numbers("sleft", "sright", "stop", "sbottom"),
    Rect: () => {
      const [x, y, wide, high] = numbers("sx0", "sy1", "swidth", "sheight")
      return [x, x.map((left, i) => left + wide[i]), y, y.map((top, i) => top + high[i])]
    },
    Text: () => [...numbers("sx", "sy"), Array.from(glyph.sx, (_, i) => glyph.y_offset.get(i))],
    Scatter: () => numbers("sx", "sy", "size"),
    Segment: () => numbers("sx0", "sy0", "sx1", "sy1"),
    Bezier: () => numbers("sx0", "sy0", "sx1", "sy1"),
    HSpan: () => numbers("sy"),
    Patch: () => numbers("sx", "sy"),
    ImageRGBA: () => [[]],
  }[kind]()
  const hex = (colours, i) => { const rgba = colours?.get(i) ?? 0; return rgba & 255 ? "#" + (rgba >>> 8).toString(16).padStart(6, "0").toUpperCase() : "" }
  const rows = columns[0].map((_, i) => ({
    at: columns.map((column) => column[i]),
    fill: hex(glyph.fill_color, i), line: glyph.line_alpha?.get(i) ? hex(glyph.line_color, i) : "", ink: hex(glyph.text_color, i),
    text: glyph.text?.get(i) ?? "",
  }))
  return {kind, source, visible, rows: rows.map((row) => ({...row, at: row.at.map((one) => Number.isNaN(one) ? null : one)}))}
})"""
"""Script: what Bokeh draws of each of the first renderers of a figure, in pixels of its canvas."""
PAINTED = """([name, points]) => {
  const view = Bokeh.index.find_one(Bokeh.documents[0].get_model_by_name(name)), {canvas} = view.canvas_view.primary
  const ratio = canvas.width / canvas.getBoundingClientRect().width, {width, height} = canvas
  const copy = Object.assign(document.createElement("canvas"), {width, height})
  const context = copy.getContext("2d", {willReadFrequently: true})
  context.drawImage(canvas, 0, 0)
  return points.map(([x, y]) => {
    const [red, green, blue, alpha] = context.getImageData(Math.floor(x * ratio), Math.floor(y * ratio), 1, 1).data
    return alpha ? "#" + [red, green, blue].map((one) => one.toString(16).padStart(2, "0")).join("").toUpperCase() : ""
  })
}"""
"""Script: the colours of some pixels of a figure's canvas."""
WORDS = """(name) => {
  const figure = Bokeh.documents[0].get_model_by_name(name), {ticker, formatter} = figure.left[0]
  const {children} = Bokeh.index.find_one(figure).el.parentNode, before = Array.from(children)
  const legend = before.slice(0, before.indexOf(Bokeh.index.find_one(figure).el)).findLast((one) => one.ariaLabel === "Legend")
  const words = (entry) => Array.from(entry.childNodes, (one) => one.textContent).filter((text) => text)
  return {
    legend: legend && legend.style.display !== "none" ? Array.from(legend.children).flatMap(words) : [],
    rows: formatter.doFormat(Array.from(ticker.ticks), {loc: 0}),
    title: figure.title.visible ? figure.title.text : "",
  }
}"""
"""Script: the words of a figure's legends from the top, of its rows, and its title."""
NEAR = 1.0
"""Pixels by which two positions may differ: columns are sent as numbers of 32 bits, and canvases round."""
WIDE = PIXELS + LABELS + RIGHT
"""Width in pixels of a still picture whose time axis is as wide as the one for which a live figure is made."""


def frame_on_page(tab: Any, name: str) -> Frame:
    """Return the frame of a still picture that has a figure's place and ranges."""
    plot = tab.evaluate(PLOT, name)
    across, up = tuple(plot.pop("across")), tuple(plot.pop("up"))
    return Frame(**plot, across=across, up=up)


def assert_agree(tab: Any, name: str, marks: Sequence[PictureMark], sources: Mapping[str, Columns]) -> list[Shape]:
    """Hold each mark of a figure against its shapes, and return all shapes.

    Args:
        tab: the page.
        name: name of the figure.
        marks: its marks.
        sources: the tables that the page should have.
    """
    frame, drawn, everything = frame_on_page(tab, name), tab.evaluate(DRAWN, [name, len(marks)]), list[Shape]()
    for mark, found in zip(marks, drawn, strict=True):
        assert found["source"] == mark.source
        if not found["visible"]:
            continue
        shapes = list(mark.shapes(sources[mark.source], frame))
        assert_same(mark, shapes, found["rows"], frame)
        everything += shapes
    assert_painted(tab, name, everything)
    return everything


def assert_same(mark: PictureMark, shapes: list[Any], rows: list[dict[str, Any]], frame: Frame) -> None:
    """Hold one mark against its shapes: as many, in the same order, at the same positions, with the same looks."""
    if isinstance(mark, BoxMark | CardMark):
        boxes = [
            row for row in rows if in_plot(row["at"], frame) and (row["fill"] or row["line"] or mark_hatches(mark))
        ]
        assert len(shapes) == len(boxes), mark
        assert_close(
            [[shape.x, shape.x + shape.width] for shape in shapes],
            [visible_part(row["at"], frame) for row in boxes],
        )
        heights = [sorted(row["at"][2:]) for row in boxes]
        expected = [[max(high, frame.top), min(low, frame.bottom)] for high, low in heights]
        assert_close([[shape.y, shape.y + shape.height] for shape in shapes], expected)
        assert [shape.fill for shape in shapes] == [row["fill"] for row in boxes], mark
        lines = [row["line"] if row["line"] != row["fill"] else "" for row in boxes]
        assert [shape.line for shape in shapes] == lines, mark
    elif isinstance(mark, TextMark):
        # Others are in the time before the first launch, which is folded.
        said = [row for row in rows if row["text"] and row["at"][0] is not None
                and frame.left - 1 <= row["at"][0] <= frame.right + 1]  # fmt: skip
        assert [shape.text for shape in shapes] == [line for row in said for line in row["text"].split("\n")], mark
        first = np.cumsum([0, *(row["text"].count("\n") + 1 for row in said)])
        for row, begin, end in zip(said, first, first[1:], strict=False):
            lines, (x, y, lift) = shapes[begin:end], row["at"]
            half = {"top": 0.5, "middle": 0.0, "bottom": -0.5}[mark.anchor] * lines[0].size
            assert_close([[lines[0].x, sum(line.y for line in lines) / len(lines)]], [[x, y + lift + half]])
            assert {line.fill for line in lines} == {row["ink"]}
    elif isinstance(mark, DotMark):
        # A polygon has no border of its own: a larger one behind it stands for that.
        dots = shapes[1::2] if mark.line and shapes and isinstance(shapes[0], Polygon) else shapes
        assert_close([middle(shape) for shape in dots], [row["at"][:2] for row in rows])
    elif isinstance(mark, LineMark):
        ends = [[*shape.points[0], *shape.points[-1]] for shape in shapes]
        assert_close(ends, [row["at"] for row in rows if row["at"][0] is not None and row["line"]])
        assert {shape.line for shape in shapes} == ({row["line"] for row in rows} if shapes else set())
    elif isinstance(mark, SpanMark):
        assert_close([[shape.points[0][1]] for shape in shapes], [row["at"] for row in rows])
    elif isinstance(mark, AreaMark):
        assert_close(
            [corner for shape in shapes for corner in shape.points],
            [row["at"] for row in rows if row["at"][0] is not None],
        )
        assert len(shapes) == sum(row["at"][0] is None for row in rows)
    else:
        assert shapes == rows == []


def mark_hatches(mark: PictureMark) -> bool:
    """Return whether boxes of a mark have a pattern."""
    return isinstance(mark, BoxMark) and bool(mark.hatch)


def in_plot(at: Sequence[float | None], frame: Frame) -> bool:
    """Return whether a box of a page is at some position, not higher than 0 only, and in the plot."""
    left, right, top, bottom = at
    if left is None or right is None or top is None or bottom is None:
        return False
    tall = min(max(top, bottom), frame.bottom) - max(min(top, bottom), frame.top)
    return right >= frame.left and left <= frame.right and tall > LOWEST


def visible_part(at: Sequence[float], frame: Frame) -> list[float]:
    """Return the part of a box that is in the plot, as wide as a still picture makes the narrowest."""
    begin = max(at[0], frame.left)
    return [begin, max(min(at[1], frame.right), begin + NARROWEST)]


def middle(shape: Rect | Polygon) -> tuple[float, float]:
    """Return the centre of a dot."""
    if isinstance(shape, Rect):
        return shape.x + shape.width / 2, shape.y + shape.height / 2
    xs, ys = zip(*shape.points, strict=True)
    return (min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2


def assert_close(found: Iterable[Sequence[float]], expected: Iterable[Sequence[float]]) -> None:
    """Hold positions in pixels against others."""
    one, other = list(found), list(expected)
    assert len(one) == len(other)
    if one:
        np.testing.assert_allclose(np.array(one, float), np.array(other, float), rtol=0, atol=NEAR)


def assert_painted(tab: Any, name: str, shapes: Sequence[Shape]) -> None:
    """Hold the pixels near the upper left corner of boxes against the colour of the uppermost box there."""
    points, colours = [], []
    for shape in shapes:
        if isinstance(shape, Rect) and shape.fill and shape.width > 8 and shape.height > 12 and not shape.radius:
            x, y = shape.x + 3, shape.y + 3
            above = [one for one in shapes if isinstance(one, Rect) and covers(one, x, y)]
            if not any(one.hatch for one in above):  # a line of the pattern may be there
                points.append((x, y))
                colours.append([one.fill for one in above if one.fill][-1])
    painted = tab.evaluate(PAINTED, [name, points])
    alike = [are_alike(one, other) for one, other in zip(painted, colours, strict=True)]
    assert sum(alike) >= 0.97 * len(alike), "some are under a line or a text"


def covers(box: Rect, x: float, y: float) -> bool:
    """Return whether a box covers a position."""
    return box.x <= x <= box.x + box.width and box.y <= y <= box.y + box.height


def are_alike(one: str, other: str) -> bool:
    """Return whether two colours look alike."""
    if not one:
        return False
    return max(abs(int(one[i : i + 2], 16) - int(other[i : i + 2], 16)) for i in (1, 3, 5)) <= 6


def without_position(shape: Shape) -> tuple[Any, ...]:
    """Return what a shape is, without its position."""
    match shape:
        case Rect():
            return "box", shape.fill, shape.line, shape.hatch
        case Text():
            return "text", shape.text, shape.fill
        case Curve():
            return "line", shape.line, shape.bezier
    return "area", shape.fill


def assert_in_still(shapes: Sequence[Shape], scene: Scene) -> None:
    """Hold the shapes of marks against the whole still picture: it has all of them, its texts in the same order."""
    missing = Counter(map(without_position, shapes)) - Counter(map(without_position, scene.shapes))
    assert not missing
    texts = [shape.text for shape in shapes if isinstance(shape, Text)]
    rest = (shape.text for shape in scene.shapes if isinstance(shape, Text))
    assert all(text in rest for text in texts), "each comes after the one before"


def assert_words(tab: Any, name: str, scene: Scene) -> None:
    """Hold legends, names of rows and title of a figure against the whole still picture, in the same order."""
    # Without the sentence above all pictures, which is larger.
    texts = [shape.text for shape in scene.shapes if isinstance(shape, Text) and shape.size < 16]
    found = tab.evaluate(WORDS, name)
    assert texts[: len(found["legend"])] == found["legend"]
    assert found["title"] in [*texts, ""]
    parts = [row if row in texts else row.replace(" · ", ", ").split(", ", 1) for row in found["rows"]]
    rest = iter(texts)
    assert all(part in rest for row in parts for part in ([row] if isinstance(row, str) else row)), parts


def grown(run: FakeRun) -> Iterator[FakeRun]:
    """Yield a run as its events come in: a third of them, two thirds, all."""
    count = len(run.recorded)
    for shown in (count // 3, 2 * count // 3, None):
        run.shown, run.finished = shown, shown is None
        yield run


def of_hosts() -> FakeRun:
    """A run on islands of several hosts, of which one gets a lane for its own work while the run goes on."""
    labels = [Label("compute", "f", "p", island=1, host=host, device=2 * host, devices=2) for host in range(2)]
    rows = [Row(labels[i % 2], i, i + 0.9) for i in range(12)]
    return FakeRun([], Events.from_rows([*rows, Row(Label("host", "load", "p", island=0), 12, 13), *rows[:2]]), (2, 4))


def many() -> Iterator[FakeRun]:
    """Yield a run of more events than boxes are drawn: several of them share a box."""
    run = fake_run()
    run.recorded = many_events(30_000)
    return grown(run)


def growing_graph() -> Iterator[FakeRun]:
    """Yield a run that gets programs, runs of them, and a value that Python needs."""
    run = fake_run()
    yield run
    run.programs = [training_step(runs=201), training_step("evaluate", 1)]
    yield run
    run.programs[1].needed = {6: ("Cell In[4], line 3", 2)}
    yield run


def guessed() -> FakeRun:
    """A run whose events have stamps of every quality and every end."""
    ends = [("exact", "ok"), ("estimated", "failed"), ("interpolated", "draining")]
    rows = [Row(Label("compute", f"f{i}", island=0, devices=4), i, i + 0.8, i, *ends[i % 3]) for i in range(12)]
    return FakeRun([], Events.from_rows(rows))


RUNS: list[tuple[str, Callable[[], Iterator[FakeRun]]]] = [
    ("graph", growing_graph),
    ("timeline", lambda: grown(fake_run())),
    ("timeline", lambda: grown(shared())),
    ("timeline", lambda: grown(guessed())),
    ("timeline", lambda: grown(of_hosts())),
    ("timeline", many),
    ("critical", lambda: grown(fake_run())),
    ("ops", lambda: grown(run_of(OPS, ("ann", "bob", "eve")))),
    ("ops", lambda: grown(run_of([*OPS, *QUEUES], ("ann", "bob", "eve")))),
    ("memory", lambda: grown(memory_run())),
    ("categories", lambda: grown(memory_run())),
]


@pytest.mark.parametrize(("show", "moments"), RUNS, ids=[f"{show}{i}" for i, (show, _) in enumerate(RUNS)])
def test_a_view_of_a_run_that_goes_on(
    opened: Callable[..., Any], show: str, moments: Callable[[], Iterator[FakeRun]]
) -> None:
    live, updates = None, 0
    for run in moments():
        if live is None:
            figure = LiveFigure(run, (show,))
            figure.push()
            live = LivePage(opened(LivePage.PLACE), figure)
        else:
            updates += figure.push()
            live.update()
        view = figure._panel.views[show]
        marks = GRAPH_MARKS if show == "graph" else view.marks
        shapes = assert_agree(live.tab, view.root.name, marks, view.sources)
        scene = scene_of(run, [show], FULL_WIDTH if show == "graph" else WIDE)
        assert_in_still(shapes, scene)
        if show != "graph":  # whose legend and titles are texts of its tables
            assert_words(live.tab, view.root.name, scene)
        if isinstance(view, Timeline):
            ticks = live.tab.evaluate("Bokeh.documents[0].get_model_by_name('timeline_islands_ticks').ticks")
            lines = [shape for shape in scene.shapes if isinstance(shape, Curve) and shape.line == LIGHT["island"]]
            assert len(lines) == len(ticks)
    assert updates >= 2
    assert shapes


def test_schedules_that_are_exchanged(opened: Callable[..., Any]) -> None:
    both = [picture("gpipe", cap=5), picture("1f1b", cap=5)]
    figure = ScheduleFigure(both)
    live = LivePage(opened(LivePage.PLACE), figure)
    live.tab.wait_for_function("live.sent.pixels")
    figure.pixels = live.told("pixels")
    live.update()
    for chosen in (
        both,
        [picture("dualpipe", cap=5), picture("zb-h1")],
        [picture("interleaved-1f1b"), picture("gpipe", 3, 5)],
    ):
        figure.draw(chosen)
        live.update()
        shapes = assert_agree(live.tab, "schedules", SCHEDULE_MARKS, figure.drawing.sources)
        width = figure.pixels + 64 + 76
        scene = scene_of_schedules(chosen, width)
        assert_in_still(shapes, scene)
        assert_words(live.tab, "schedules", scene)


MESH = pw.virtual_slice((2, 4), axes=("data", "model"), name="mesh")
SHARDINGS: list[Any] = [
    pw.show_sharding((8, 4), pw.P("data"), MESH, to=pw.P(None, "model")),
    pw.show_sharding((7, 3, 9), pw.P("data", None, "model"), MESH),
    pw.show_sharding((64, 64), pw.P("model"), MESH),
]


@pytest.mark.parametrize("shown", SHARDINGS, ids=range(len(SHARDINGS)))
def test_shardings(opened: Callable[..., Any], shown: Any) -> None:
    tab = opened(sharding_display.ShardingFigure(shown).json_item_with_data())
    sources, _ = sharding_display.columns_of(shown, FULL_WIDTH)
    assert_in_still(assert_agree(tab, "sharding", SHARDING_MARKS, sources), sharding_display.scene_of(shown))


@pytest.mark.parametrize("end", [3e-6, 5e-4, 4e-3, 0.15, 1.5, 30.0])
def test_times_on_axes_have_the_same_words(opened: Callable[..., Any], end: float) -> None:
    ticks = list(time_ticks(0.0, end, 9))
    script = "([code, ticks]) => ticks.map((tick) => new Function('tick', 'ticks', code)(tick, ticks))"
    assert opened("<p>times</p>").evaluate(script, [TICKS, [time for time, _ in ticks]]) == [
        words for _, words in ticks
    ]
