"""Still pictures of a run: its views one below the other, with the summary, written to files.

Each view draws its marks as shapes itself (``View.still``), so a figure in a paper shows what the notebook shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pathways_nb.errors import both_ends, is_number
from pathways_nb.util.json_text import shortened
from pathways_widgets.drawing import style
from pathways_widgets.drawing.scene import Scene, Text, length_parts
from pathways_widgets.drawing.still_frame import LIGHT, LINE, RIGHT
from pathways_widgets.drawing.still_text import text_width, wrapped
from pathways_widgets.drawing.views import FULL_WIDTH, Moment, RunLike
from pathways_widgets.figures.panel import DEFAULT_SHOW, VIEWS, check_show
from pathways_widgets.figures.viewpoint import seen_at, split_view

NARROWEST, WIDEST = 200.0, 10_000.0
HEADLINE = 16.0
"""Pixels of the sentence above a picture, on a screen."""
MARGIN = 12.0
"""Pixels left of the summary."""


def scene_of(run: RunLike, show: Sequence[str] = DEFAULT_SHOW, width: float = FULL_WIDTH, at: str = "") -> Scene:
    """Return the views of a run one below the other, with legends and the summary.

    Args:
        run: what to draw.
        show: names of views.
        width: width in pixels.
        at: the view: its part of the time axis, its filter, the kinds and clients that it hides, what is picked or
            found, and the brushed part with its totals. A graph is drawn whole.
    """
    seen = seen_at(Moment.of(run), at)
    moment = seen.moment
    scene = Scene(width, 0.0, LIGHT["background"])
    write_lines(scene, moment.headline(), HEADLINE * style.current().factor, "text")
    for name in check_show(show):
        view = VIEWS[name](moment.islands, moment.island_names)
        view.window, view.picked, view.brushed = seen.window, seen.picked, seen.brushed
        shapes, height = view.still(moment, width, scene.height)
        scene.shapes += shapes
        scene.height += height
    for line in filter(None, seen.totals.split("\n")):
        write_lines(scene, line, style.current().font, "text")
    write_lines(scene, moment.summary_line(), style.current().font, "soft")
    scene.height += 4
    return scene


def write_lines(scene: Scene, text: str, font: float, role: str) -> None:
    """Write a line below what is in a scene, on a narrow page as several; ``role`` is that of its colour."""
    row = LINE / style.STYLES["screen"].font * font
    max_width = scene.width - MARGIN - RIGHT
    for line in wrapped(text, lambda words: text_width(words, font) <= max_width) if text else ():
        scene.shapes.append(Text(MARGIN, scene.height + row / 2, line, font, LIGHT[role]))
        scene.height += row


def write(
    run: RunLike,
    path: str | Path,
    width: str | float = FULL_WIDTH,
    show: Sequence[str] = DEFAULT_SHOW,
    at: str = "",
) -> None:
    """Write a picture of a run.

    Args:
        run: what to draw.
        path: path of the file, which ends in ``.svg`` or ``.png``.
        width: pixels, or a length; see ``write_scene``.
        show: names of views.
        at: the view, as for ``scene_of``.

    Raises:
        ValueError: the file's ending, the length, a view or what is written in ``at`` is unknown.
    """
    opens_at, _ = split_view(at)
    write_scene(lambda pixels: scene_of(run, show, pixels, opens_at), path, width)


def write_scene(draw: Callable[[float], Scene], path: str | Path, width: str | float) -> None:
    """Write a picture as SVG or PNG, by the ending of ``path``.

    Args:
        draw: makes the picture, given its width in pixels.
        path: path of the file.
        width: pixels, or a length such as ``"3.3in"``, ``"8cm"``, ``"500px"`` or ``"240pt"``.

    Raises:
        ValueError: the file's ending or the length is unknown.
    """
    pixels, kind = _pixels(width), Path(path).suffix.lower()
    if kind not in (".svg", ".png"):
        raise ValueError(
            f"savefig({both_ends(str(path), 300)!r}): the ending must be .svg or .png, not {shortened(kind)}."
        )
    scene = draw(pixels)
    if kind == ".svg":
        Path(path).write_text(scene.svg(width if isinstance(width, str) else ""), "utf-8")
    else:
        # A width in units of paper is for print, one in pixels for a screen.
        Path(path).write_bytes(scene.png(300 / 96 if isinstance(width, str) else 2.0))  # 300 dots per inch on paper


def _pixels(width: str | float) -> float:
    """Return a width in pixels.

    Raises:
        ValueError: not a length, or one that no picture has.
    """
    pixels = _in_pixels(width)
    if not NARROWEST <= pixels <= WIDEST:
        raise ValueError(f"savefig(width={width!r}): a picture is {NARROWEST:g} to {WIDEST:g} pixels wide (1in is 96).")
    return pixels


def _in_pixels(width: str | float) -> float:
    """Return a width in pixels, of which an inch has 96 as in CSS.

    Raises:
        ValueError: not a length.
    """
    if not isinstance(width, str):
        if not is_number(width):
            raise ValueError(f"savefig(width={shortened(width)}): write pixels, or a length such as '3.3in'.")
        return float(width)
    number, unit = length_parts(width)
    return number * {"px": 1.0, "in": 96.0, "cm": 96 / 2.54, "mm": 9.6 / 2.54, "pt": 96 / 72}[unit]
