"""Pictures of shardings, read from their columns: blocks tile the array, labels fit, and nothing is left out."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.still_text import text_width
from pathways_widgets.shardings.layout_picture import MOST_BLOCKS
from pathways_widgets.shardings.sharding_columns import SIDES, SOURCES
from pathways_widgets.shardings.sharding_display import ShardingFigure, columns_of, scene_of
from pathways_widgets.shardings.sharding_grid import grid_of
from tests.core.widgets.colour_science import contrast, least_distance

WIDTH = 900.0
CUBE = pw.virtual_slice((4, 4, 4), axes=("a", "b", "c"), name="cube")
POD = pw.virtual_slice((16, 32), axes=("data", "model"), name="pod")
LINE = pw.virtual_slice(512, name="line")


def boxes(columns: dict[str, list[Any]]) -> list[tuple[float, ...]]:
    """Return the sides of each box."""
    return list(zip(*(columns[side] for side in SIDES), strict=True))


def texts(columns: dict[str, list[Any]]) -> list[tuple[float, ...]]:
    """Return the sides of each centred text."""
    rows = zip(*(columns[name] for name in ("x", "y", "text")), strict=True)
    return [(x - text_width(text, 11) / 2, x + text_width(text, 11) / 2, y - 5, y + 5) for x, y, text in rows]


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Return whether two boxes overlap."""
    near = 1e-6
    across = one[0] < other[1] - near and other[0] < one[1] - near
    return across and one[2] < other[3] - near and other[2] < one[3] - near


@pytest.mark.parametrize(
    ("shape", "spec", "place"),
    [
        ((), None, CUBE),
        ((64,), pw.P(("a", "b", "c")), CUBE),
        ((8, 8), pw.P("a", "b"), CUBE),
        ((8, 8, 8), pw.P("a", "b", "c"), CUBE),
        ((8, 5, 8, 8), pw.P("a", None, "b", "c"), CUBE),
        ((4, 4, 4, 6, 6), pw.P("a", "b", "c"), CUBE),
        ((7, 3, 9), pw.P("a", "b", "c"), CUBE),
        ((512,), pw.P("x"), LINE),
        ((512, 4), pw.P("x"), LINE),
        ((512, 4, 4), pw.P("x"), LINE),
        ((4096, 4096), pw.P("data", "model"), POD),
        ((4096, 4096), pw.P(None, "model"), POD),
        ((64, 8, 4096), pw.P("data", None, "model"), POD),
    ],
)
def test_every_block_is_drawn_once_and_none_covers_another(shape: Any, spec: Any, place: pw.VirtualSlice) -> None:
    layout = pw.show_sharding(shape, spec, place)
    sources, height = columns_of(layout, WIDTH)
    drawn = sources["sharding_blocks"]
    full = [block for block in layout.blocks.holders if layout.bytes_of(block)]
    assert sorted(drawn["index"]) == sorted(map(layout.index, full))
    found = boxes(drawn)
    assert all(0 <= left < right <= WIDTH + 1e-6 and 0 <= top < bottom <= height for left, right, top, bottom in found)
    if len(found) <= 64:
        assert not any(overlap(*pair) for pair in itertools.combinations(found, 2))


@settings(max_examples=20)
@given(st.lists(st.integers(1, 12), max_size=5), st.integers(2, 40), st.integers(2, 40))
def test_every_block_has_a_place_of_its_own(parts: list[int], columns: int, rows: int) -> None:
    grid = grid_of(parts, columns, rows)
    blocks = list(itertools.product(*map(range, parts)))[:3000]
    across, down = grid.across.fitted(900, 50, 10), grid.down.fitted(400, 40, 10)
    places = {(round(across.at(block), 6), round(down.at(block), 6)) for block in blocks}
    assert len(places) == len(blocks)
    assert max(x for x, _ in places) < across.extent + 1e-6


@pytest.mark.parametrize("place", [LINE, POD])
def test_numbers_of_512_devices_do_not_lie_over_each_other(place: pw.VirtualSlice) -> None:
    layout = pw.show_sharding((512, 512), pw.P(*place.axes), place)
    for picture in (layout, pw.show_sharding((512, 512), pw.P(*place.axes), place, to=pw.P(place.axes[-1]))):
        marks = columns_of(picture, WIDTH)[0]["sharding_marks"]
        assert not any(overlap(*pair) for pair in itertools.combinations(texts(marks), 2))


def test_copies_show_all_their_devices() -> None:
    sources, _ = columns_of(pw.show_sharding((8, 8), pw.P(None, "c"), CUBE), WIDTH)
    assert sources["sharding_blocks"]["devices"][0] == "dev 0, 4, …, 60 (16 copies)"
    assert len(sources["sharding_copies"]["fill"]) == 4 * 16
    assert "strip: devices with a copy" in " ".join(sources["sharding_words"]["text"])


def test_padding_is_hatched_and_what_holds_nothing_too() -> None:
    sources, _ = columns_of(pw.show_sharding((6,), pw.P("x"), pw.virtual_slice(4)), WIDTH)
    (whole, *_), found = boxes(sources["sharding_blocks"]), boxes(sources["sharding_padding"])
    assert len(sources["sharding_blocks"]["index"]) == 3
    assert [right - left for left, right, *_ in found] == [pytest.approx(whole[1] - whole[0])]
    assert "hatched: padding" in " ".join(sources["sharding_words"]["text"])


def test_dimensions_that_are_not_split_take_no_space_and_say_so() -> None:
    sources, _ = columns_of(pw.show_sharding((4, 5, 8, 8), pw.P("a", None, "b", "c"), CUBE), WIDTH)
    assert "dim 1: 5, not split, not drawn" in " ".join(sources["sharding_words"]["text"])
    assert "[0:1, :, :, :]" in sources["sharding_words"]["text"]


def test_more_blocks_than_are_drawn_are_counted() -> None:
    huge = pw.virtual_slice((128, 128), axes=("data", "model"))
    sources, _ = columns_of(pw.show_sharding((128, 128), pw.P("data", "model"), huge), WIDTH)
    assert len(sources["sharding_blocks"]["index"]) == MOST_BLOCKS
    text = f"only {MOST_BLOCKS} of {128 * 128} blocks are drawn: the first of each dimension"
    assert text in sources["sharding_words"]["text"]
    assert max(sources["sharding_words"]["y"]) - max(sources["sharding_blocks"]["bottom"]) < 40, "no empty space"


def test_a_reshard_has_a_table_of_bytes() -> None:
    four = pw.virtual_slice(4)
    sources, _ = columns_of(pw.show_sharding((8, 4), pw.P("x"), four, to=pw.P(None, "x")), WIDTH)
    moves = sources["sharding_moves"]
    assert len(moves["what"]) == 12
    assert (moves["what"][0], moves["amount"][0]) == ("dev 0 → dev 1", "8 B")
    assert len(sources["sharding_stays"]["left"]) == 4
    many, _ = columns_of(pw.show_sharding((512, 512), pw.P("data", "model"), POD, to=pw.P("data")), WIDTH)
    assert many["sharding_moves"]["what"][0] == "dev 0–15 → dev 0–15"


def test_a_device_has_one_colour_before_and_after() -> None:
    four = pw.virtual_slice(4)
    sources, _ = columns_of(pw.show_sharding((8, 4), pw.P("x"), four, to=pw.P(None, "x")), WIDTH)
    fills = dict[str, set[str]]()
    for device, fill in zip(*(sources["sharding_blocks"][name] for name in ("devices", "fill")), strict=True):
        fills.setdefault(device, set()).add(fill)
    assert [len(colours) for colours in fills.values()] == [1] * 4


def test_colours_of_devices_can_be_told_apart_and_read() -> None:
    for count in range(1, len(palette.DEVICES) + 1):
        colours = [palette.device_colour(position, count) for position in range(count)]
        assert min((least_distance(*pair) for pair in itertools.combinations(colours, 2)), default=99) >= 10
    for count in (7, 8, 13, 64, 512):
        colours = [palette.device_colour(position, count) for position in range(count)]
        assert min(contrast(palette.INK, colour) for colour in colours) >= 4.5
        assert len({colours[0], colours[-1], colours[count // 2]}) == 3


@pytest.mark.parametrize("width", [300.0, 900.0])
def test_figure_and_still_picture_have_the_same_words(width: float) -> None:
    picture = pw.show_sharding((8, 4), pw.P("a"), CUBE, to=pw.P(None, "b"))
    written = {shape.text for shape in scene_of(picture, width).shapes if hasattr(shape, "text")}
    assert set(columns_of(picture, width)[0]["sharding_words"]["text"]) <= written
    figure = ShardingFigure(picture)
    assert repr(figure) == repr(picture)
    item = figure.json_item_with_data()
    assert set(item["themes"]) == {"light", "dark"}
    assert item["description"] == repr(picture)


def test_a_script_prints_the_text_and_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = pw.show_sharding((8,), pw.P("x"), LINE)
    layout.show()
    assert capsys.readouterr().out == f"{layout!r}\n"
    layout.savefig(tmp_path / "a.svg", width="3.3in")
    layout.savefig(tmp_path / "a.png")
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"the ending must be \.svg or \.png"):
        layout.savefig(tmp_path / "a.gif")


def test_every_source_has_its_columns() -> None:
    sources, _ = columns_of(pw.show_sharding((), None, LINE), WIDTH)
    assert {name: tuple(columns) for name, columns in sources.items()} == SOURCES


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], pw.P, pw.VirtualSlice]:
    """Any shape, also uneven or empty, with any spec over a place."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 16]), min_size=1, max_size=3))
    shape = draw(st.lists(st.integers(0, 40), max_size=5))
    entries: list[tuple[str, ...]] = [()] * len(shape)
    for axis in draw(st.permutations("abc"[: len(sizes)])):
        if (at := draw(st.integers(-1, len(shape) - 1))) >= 0:
            entries[at] = (*entries[at], axis)
    place = pw.virtual_slice(sizes, axes=tuple("abc"[: len(sizes)]))
    return tuple(shape), pw.P(*(entry or None for entry in entries)), place


@settings(max_examples=30)
@given(layouts(), st.sampled_from([200.0, 317.0, 900.0]))
def test_any_layout_is_drawn_within_its_page(case: Any, width: float) -> None:
    shape, spec, place = case
    for picture in (pw.show_sharding(shape, spec, place), pw.show_sharding(shape, spec, place, to=pw.P())):
        sources, height = columns_of(picture, width)
        for left, right, top, bottom in itertools.chain(*(boxes(one) for one in sources.values() if "left" in one)):
            assert -1e-6 <= left <= right <= width + 1e-6
            assert 0 <= top <= bottom <= height + 1e-6
        assert max(sources["sharding_words"]["y"]) < height
        assert not any(overlap(*pair) for pair in itertools.combinations(texts(sources["sharding_marks"])[:300], 2))
