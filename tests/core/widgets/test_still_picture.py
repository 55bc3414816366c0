"""Still pictures: SVG and PNG of the same list, with everything that Bokeh draws, written without a browser."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from pathways_nb.util import fallbacks
from pathways_widgets.drawing import palette, style
from pathways_widgets.drawing.scene import Curve, Rect, Scene, Text
from pathways_widgets.drawing.still_text import text_width, wrapped
from pathways_widgets.drawing.time_axis import time_ticks
from pathways_widgets.figures.output import show_still
from pathways_widgets.figures.run_still import scene_of, write
from pathways_widgets.graph.graph_view import GraphView
from pathways_widgets.timeline.timeline_view import Timeline
from tests.core.widgets.colour_science import colours_of
from tests.core.widgets.fake_run import FakeRun, fake_run, many_events

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_a_picture_says_what_the_live_one_says() -> None:
    run = fake_run()
    found = texts(scene_of(run).svg())
    graph, timeline = GraphView(page=900).update(run), Timeline(run.islands, 900 - 104 - 12).update(run)
    for source in ("graph_titles", "graph_legend", "graph_labels"):
        assert set(graph[source]["text"]) <= set(found), source
    assert set(graph["graph_nodes"]["name"]) <= set(found)
    assert sorted(text for text in found if re.fullmatch(r"[FB]\d", text)) == sorted(
        text for text in timeline["timeline_marks"]["text"] if re.fullmatch(r"[FB]\d", text)
    )
    occurring = {palette.code_of(label.kind, label.name) for label in run.events.labels}
    explained = {kind.words for kind in palette.KINDS if kind.words in found}
    assert explained == {palette.KINDS[code].words for code in occurring}, "the legend, and no other kinds"
    assert "work of a host" not in found
    assert run.summary_line() in found


def test_a_value_that_python_needed_is_marked() -> None:
    run = fake_run()
    assert not any("value needed" in text for text in texts(scene_of(run).svg()))
    run.programs[0].needed = {6: ("Cell In[4], line 3", 2)}  # of the result, at the lower end of the picture
    scene = scene_of(run, ["graph"])
    assert {"← value needed ×2", "Cell In[4], line 3"} <= set(texts(scene.svg()))
    outlined = [s for s in scene.shapes if isinstance(s, Rect) and s.line == palette.NEEDED]
    tab = min(outlined, key=lambda s: s.line_width)  # boxes of a place that has the same colour are thicker
    assert tab.y + tab.height <= scene.height


def test_every_box_is_drawn_in_its_colour_and_proportion() -> None:
    run = fake_run()
    columns = Timeline(run.islands).update(run)["timeline_boxes"]
    shapes = scene_of(run, ["timeline"]).shapes
    for code in set(columns["code"].tolist()):
        colour, mine = palette.KINDS[code].colour, columns["code"] == code
        lasts = (columns["right"] - columns["left"])[mine]
        widths = [
            s.width for s in shapes if isinstance(s, Rect) and s.fill == colour and (s.width, s.height) != (10, 10)
        ]
        assert len(widths) >= len(lasts)
        if code == palette.CODES["backward"]:
            wide = sorted(widths)[-len(lasts) :]
            np.testing.assert_allclose(np.array(wide) / max(wide), np.sort(lasts) / lasts.max(), rtol=1e-6)


def test_png_and_svg_have_the_same_shape_and_ground() -> None:
    scene = scene_of(fake_run())
    image = Image.open(io.BytesIO(scene.png(1.0)))
    assert image.size == (900, round(scene.height))
    root = ET.fromstring(scene.svg("3.3in"))
    assert root.attrib["width"] == "3.3in"
    assert root.attrib["viewBox"] == f"0 0 900 {scene.height:g}"
    assert image.convert("RGB").getpixel((899, 0)) == (255, 255, 255)


def test_a_png_paints_boxes_where_they_are() -> None:
    scene = Scene(40, 20, "#FFFFFF", [Rect(10, 5, 20, 10, "#102030"), Curve(((0, 1), (39, 1)), "#FF0000", 2)])
    image = Image.open(io.BytesIO(scene.png(1.0))).convert("RGB")
    assert image.getpixel((20, 10)) == (0x10, 0x20, 0x30)
    assert image.getpixel((5, 10)) == (255, 255, 255)
    assert image.getpixel((20, 1)) == (255, 0, 0)


@pytest.mark.parametrize(("quality", "dash"), palette.DASHES.items())
def test_guessed_times_have_a_dashed_edge(quality: str, dash: tuple[int, int]) -> None:
    run = FakeRun([], Events.from_rows([Row(Label("compute", "f", island=0, devices=4), 0, 1, 0, quality)]))
    scene = scene_of(run, ["timeline"])
    swatch, edge = (one for one in scene.shapes if isinstance(one, Rect) and one.dash == dash)
    assert swatch.width < edge.width
    assert palette.GUESSES[quality] in texts(scene.svg())
    assert f'stroke-dasharray="{dash[0]:g} {dash[1]:g}"' in scene.svg()
    image = Image.open(io.BytesIO(scene.png(2))).convert("RGB")
    along = [image.getpixel((x, round(2 * edge.y))) for x in range(round(2 * edge.x), round(2 * (edge.x + 20)))]
    assert {palette.channels(palette.BOX_EDGE), palette.channels(palette.SKY)} <= set(along)


def test_names_cannot_break_out() -> None:
    evil = "</text><script>alert(1)</script>&"
    run = FakeRun([], Events.from_rows([Row(Label("compute", evil, evil, island=0, devices=4), 0.0, 1.0, 0, "exact")]))
    svg = scene_of(run).svg()
    assert "<script" not in svg
    assert any(evil in text for text in texts(svg))


@pytest.mark.parametrize("width", [317.0, 600.0, 1800.0])
def test_nothing_leaves_the_picture(width: float) -> None:
    scene = scene_of(fake_run(), width=width)
    assert scene.width == width
    for shape in scene.shapes:
        if isinstance(shape, Rect):
            assert -1 <= shape.x <= shape.x + shape.width <= width + 1
            assert -1 <= shape.y <= shape.y + shape.height <= scene.height + 1
        elif isinstance(shape, Text):
            assert 0 <= shape.y <= scene.height


def test_times_on_the_axis_are_round() -> None:
    found = texts(scene_of(fake_run(), ["timeline"]).svg())
    ticks = [float(text.split()[0]) for text in found if re.fullmatch(r"[\d.]+ (s|ms|µs)", text)]
    assert 3 <= len(ticks) <= 12
    steps = np.diff(ticks)
    np.testing.assert_allclose(steps, steps[0])
    assert f"{steps[0]:.0e}"[0] in "125"


def test_long_times_on_the_axis_have_all_digits() -> None:
    assert [text for _, text in time_ticks(0.0, 2.1e6, 4)] == ["0 s", "1000000 s", "2000000 s"]


def test_many_events_are_few_boxes_and_empty_runs_are_pictures() -> None:
    run = fake_run()
    run.recorded = many_events(60_000)
    assert len(scene_of(run).shapes) < 6000
    assert texts(scene_of(FakeRun([], Events.from_rows([]))).svg())


@pytest.mark.parametrize(
    ("name", "width", "size"),
    [("a.png", 450, (900, None)), ("a.png", "3in", (900, None)), ("a.PNG", "240pt", (1000, None))],
)
def test_widths_on_paper(tmp_path: Path, name: str, width: str | float, size: tuple[int, None]) -> None:
    write(fake_run(), tmp_path / name, width)
    with Image.open(tmp_path / name) as image:
        assert image.size[0] == size[0]


def test_a_picture_has_the_height_that_goes_with_its_width(tmp_path: Path) -> None:
    write(fake_run(), tmp_path / "a.svg", "6in")
    found = re.search(
        r'<svg [^>]*width="6in" height="([\d.]+)in" viewBox="0 0 ([\d.]+) ([\d.]+)"', (tmp_path / "a.svg").read_text()
    )
    assert found is not None
    height, across, down = map(float, found.groups())
    assert height / 6 == pytest.approx(down / across, rel=1e-4)


@pytest.mark.parametrize("kind", palette.KINDS, ids=lambda kind: kind.name)
def test_a_png_has_the_palettes_colours(kind: palette.EventStyle) -> None:
    with Image.open(io.BytesIO(scene_of(fake_run()).png(1.5))) as image:
        pixels = colours_of(image)
    wanted = np.array([int(kind.colour[i : i + 2], 16) for i in (1, 3, 5)])
    assert np.abs(pixels - wanted).sum(1).min() <= 9


@pytest.mark.parametrize("width", [3, "0.01in", 0, "2000in"])
def test_widths_that_no_picture_has_are_refused(tmp_path: Path, width: str | float) -> None:
    with pytest.raises(ValueError, match=r"savefig\(width=.*\): a picture is 200 to 10000 pixels wide"):
        write(fake_run(), tmp_path / "a.png", width)


def test_unknown_endings_lengths_and_views_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the ending must be .svg or .png, not '.jpg'"):
        write(fake_run(), tmp_path / "a.jpg")
    with pytest.raises(ValueError, match=r"savefig\(width='3 feet'\): write a number and px, in, cm, mm or pt"):
        write(fake_run(), tmp_path / "a.svg", "3 feet")
    with pytest.raises(ValueError, match="there is no view 'graf'"):
        write(fake_run(), tmp_path / "a.svg", show=("graf",))


@pytest.fixture
def screen_again():
    yield
    style.choose("screen")


@pytest.mark.parametrize(("name", "scale"), [("projector", 1.0), ("paper", 1.0), ("screen", 1.5)])
def test_a_style_sets_sizes_of_live_and_still_pictures(screen_again, name: str, scale: float) -> None:
    before = scene_of(fake_run())
    style.choose(name, scale)
    expected = style.STYLES[name].font * scale
    after = scene_of(fake_run())
    marks = [shape.size for shape in after.shapes if isinstance(shape, Text) and re.fullmatch(r"[FB]\d", shape.text)]
    assert set(marks) == {expected}
    assert (after.height > before.height) == (expected > 11)
    timeline, graph = Timeline((4, 4)), GraphView()
    graph.update(fake_run())
    assert timeline.root.legend[0].label_text_font_size == f"{expected}px"
    assert timeline.lanes.pixels == round(style.STYLES[name].lane * scale)
    width, _, _, factor, _ = graph.properties["graph"]["tags"]
    assert factor == pytest.approx(expected / 11)
    assert 0 < width < 1080


def test_unknown_styles_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^style\('poster'\): choose one of 'screen', 'projector', 'paper'"):
        style.choose("poster")
    with pytest.raises(ValueError, match="a positive number"):
        style.choose("paper", 0)


@pytest.mark.parametrize("width", [200.0, 317.0])
def test_a_long_part_of_the_summary_is_broken_at_spaces(monkeypatch, width: float) -> None:
    words = f"makespan 1 s · {'bob waited 3 ms (for the memory of others), ' * 6}· 2 failed"
    monkeypatch.setattr(FakeRun, "summary_line", lambda self: words)
    scene = scene_of(fake_run(), ["timeline"], width)
    lines = [shape for shape in scene.shapes if isinstance(shape, Text) and shape.x == 12]
    everything = fake_run().headline() + words
    written, said = (re.sub("[ ·]", "", text) for text in ("".join(line.text for line in lines), everything))
    assert written == said
    for line in lines:
        assert line.x + text_width(line.text, line.size) <= width


def fails() -> Scene:
    raise ZeroDivisionError("division by zero")


def test_a_still_picture_that_fails_is_told_and_leaves_the_cell_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallbacks, "_told", set())
    with pytest.warns(
        RuntimeWarning, match=r"beside a figure could not be drawn \(ZeroDivisionError.*shown without it"
    ):
        assert show_still(fails, "a figure", None) is None


def test_a_text_of_several_lines_is_measured_and_drawn() -> None:
    """Names of runs may have line ends, and errors of a user's schedule have: Pillow measures and draws one line."""
    name = "first\nsecond"
    assert text_width(name, 11) > text_width("firstsecond", 11), "the end of a line is visible"
    scene = Scene(200, 20, "#FFFFFF", [Text(0, 10, name, 11, "#000000", background="#EEEEEE")])
    assert texts(scene.svg()) == [r"first\nsecond"]
    assert scene.png()
    assert list(wrapped(f"{name} word · part\n\nlast", lambda words: len(words) <= 11)) == [
        "first", "second word", "part", "", "last"
    ]  # fmt: skip
