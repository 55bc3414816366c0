"""Still pictures of schedules: what Bokeh draws, as SVG and PNG."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.scene import Polygon, Rect, Text
from pathways_widgets.drawing.still_text import text_width
from pathways_widgets.schedules.schedule_columns import COLOURS
from pathways_widgets.schedules.schedule_display import write
from pathways_widgets.schedules.schedule_still import scene_of_schedules
from tests.core.widgets.colour_science import colours_of
from tests.core.widgets.test_schedule_view import drawn, picture

SVG = "{http://www.w3.org/2000/svg}"


def still_texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_a_still_picture_is_the_live_one() -> None:
    both = [picture("gpipe", cap=5), picture("dualpipe", cap=5)]
    scene, view = scene_of_schedules(both), drawn(*both, pixels=760)
    found = still_texts(scene.svg())
    assert {word for kind in palette.OPERATIONS for word in (kind.letter, kind.name)} <= set(found)
    assert {"bubble", "activations held", "cap of a device", "paler: other direction"} <= set(found)
    assert {"device 0", "8 > 5", "peak 5", "gpipe, 4 devices × 8 microbatches"} <= set(found)
    assert [t for t in found if re.fullmatch(r"[FIWB]\d", t)] == [
        t for t in view.sources["schedules_marks"]["text"] if t
    ]
    for code, colour in enumerate(COLOURS):
        live = view.sources[f"schedules_fill{code}"]
        widths = sorted(s.width for s in scene.shapes if isinstance(s, Rect) and s.fill == colour and s.height != 12)
        assert len(widths) == len(live["left"]), colour
        if widths:
            lasts = np.sort(live["right"] - live["left"])
            np.testing.assert_allclose(np.array(widths) / widths[-1], lasts / lasts[-1], rtol=1e-4)
    hatched = [s for s in scene.shapes if isinstance(s, Rect) and s.hatch and s.height != 12]
    assert len(hatched) == 8
    assert sum(isinstance(s, Polygon) and s.fill == palette.MEMORY for s in scene.shapes) == 8


@pytest.mark.parametrize("width", [317.0, 600.0, 1800.0])
@pytest.mark.parametrize("size", [(4, 8), (16, 128)])
def test_nothing_leaves_the_still_picture(width: float, size: tuple[int, int]) -> None:
    scene = scene_of_schedules([picture("gpipe", *size, cap=3), picture("interleaved-1f1b", *size, cap=3)], width)
    for shape in scene.shapes:
        if isinstance(shape, Rect):
            assert -1 <= shape.x <= shape.x + shape.width <= width + 1
            assert -1 <= shape.y <= shape.y + shape.height <= scene.height + 1
        elif isinstance(shape, Text) and width > 320:
            before = {"start": 0.0, "middle": 0.5, "end": 1.0}[shape.align]
            long = text_width(shape.text, shape.size)
            assert -1 <= shape.x - before * long <= shape.x + (1 - before) * long <= width + 1, shape.text


def test_a_png_has_the_colours_of_operations(tmp_path) -> None:
    write([picture("zb-v"), picture("gpipe")], tmp_path / "a.png", 900)
    pixels = colours_of(Image.open(io.BytesIO((tmp_path / "a.png").read_bytes())))
    for kind in palette.OPERATIONS:
        wanted = np.array([int(kind.colour[i : i + 2], 16) for i in (1, 3, 5)])
        assert np.abs(pixels - wanted).sum(1).min() <= 9, kind
