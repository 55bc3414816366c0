"""Columns of the graph's picture: boxes, curves, labels and the legend of virtual slices, in pixels with y downwards.

Widths of text are estimated from a width per letter (``_NAME_LETTER`` and the like): the browser chooses the font, so
Python cannot measure the text. Layers and heights come from
``layered_layout``, labels are placed by ``graph_labels``, and Bokeh draws the columns in ``graph_view``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from pathways_nb.trace.metrics import size
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.views import FULL_WIDTH, DrawnProgram, node_id
from pathways_widgets.graph.folding import DrawnEdge, DrawnNode, drawn, is_large
from pathways_widgets.graph.graph_labels import EdgeCurve, Labels, label_width
from pathways_widgets.graph.layered_layout import LayeredLayout, layered
from pathways_widgets.graph.program_picture import ProgramPicture

MARGIN = 12.0
WIDEST = 1080.0
"""Largest width in pixels of a graph on a page of ``FULL_WIDTH``, where it is a little smaller; others are folded."""
TITLE, BETWEEN, _LEGEND_ROW = 36.0, 22.0, 20.0
_NAME_LETTER, _SUB_LETTER, _LEGEND_LETTER = 6.4, 5.8, 6.2
_GAP, _LABEL_GAP = (20.0, 44.0), (58.0, 92.0)
"""Least and natural space between layers, without and with labels on the edges between them."""
_LONGEST_NAME = 26
_BEFORE = 8.0
"""Pixels before a layer at which a graph may be cut: the heads of arrows are nearer."""
_PIECES = 8
"""Straight pieces of a curve that the pointer finds."""
_SUB_BELOW = 7.0
"""Pixels from the centre of a box down to that of its smaller lines."""
_TAB = 28.0
"""Height of the two lines under a box that say where Python waited for its value."""


class _Spot(NamedTuple):
    """Left and right edge and centre height of a box, in pixels."""

    left: float
    right: float
    y: float


class _Box(NamedTuple):
    """The text in a box and on the tab under it, and the space that they need in pixels.

    Args:
        name: the title.
        sub: smaller lines under it.
        tab: the lines of the tab; empty for no tab.
    """

    name: str
    sub: str
    tab: str

    @property
    def width(self) -> float:
        """Width for the longest line."""
        longest = max(len(line) for line in f"{self.sub}\n{self.tab}".split("\n"))
        return max(len(self.name) * _NAME_LETTER, longest * _SUB_LETTER) + 14.0

    @property
    def height(self) -> float:
        """Height of the box without its tab."""
        return 24.0 + 12.0 * self._lines if self.sub else 22.0

    @property
    def below(self) -> float:
        """Height of the tab; 0 if there is none."""
        return _TAB if self.tab else 0.0

    @property
    def lift(self) -> float:
        """Offset of the name from the centre of the box, to leave space for the smaller lines; upwards is negative."""
        return -7.0 * self._lines

    @property
    def _lines(self) -> int:
        return self.sub.count("\n") + 1 if self.sub else 0


def picture(program: DrawnProgram, colours: Mapping[int, str], max_width: float = FULL_WIDTH) -> ProgramPicture:
    """Return one program, laid out in about ``max_width`` pixels.

    A graph that would be wider than a screen is drawn with names only, in two lines, then with repeated nodes folded.

    Args:
        program: what to draw.
        colours: colour of each virtual slice, by its serial.
        max_width: width in pixels.
    """
    # From the form that says most to the narrowest. The last stays if none fits.
    for folded in (True,) if is_large(program.graph) else (False, True):
        nodes, edges = drawn(program, folded)
        for with_place in (True, False):
            found = _picture(program, colours, nodes, edges, with_place, max_width)
            if found.width <= widest(max_width):
                return found
    return found


def widest(max_width: float) -> float:
    """Return the largest width in pixels of a program on a page of ``max_width``, where it is a little smaller."""
    return WIDEST / FULL_WIDTH * max_width - 2 * MARGIN


def _picture(
    program: DrawnProgram,
    colours: Mapping[int, str],
    nodes: list[DrawnNode],
    edges: list[DrawnEdge],
    with_place: bool,
    max_width: float,
) -> ProgramPicture:
    """Return one program drawn from given boxes and edges.

    Args:
        program: what to draw.
        colours: colour of each virtual slice, by its serial.
        nodes: the boxes.
        edges: the edges between them.
        with_place: whether boxes name their virtual slice and its devices.
        max_width: width in pixels.
    """
    boxes = [_box(node, program, with_place) for node in nodes]
    pairs = [(edge.source, edge.target) for edge in edges]
    # A tab belongs to the height of its node in the layout, so that no other node is placed over it.
    layout = layered([box.height + box.below for box in boxes], pairs)
    spans = _spans([box.width for box in boxes], layout, edges, max_width)
    result = ProgramPicture(width=spans[-1][1] if spans else 0.0, height=layout.height)
    result.cuts = [left - _BEFORE for left, _ in spans[1:]]
    spots = []
    for node, box, layer, centre in zip(nodes, boxes, layout.layer, layout.y, strict=True):
        # Box and tab together are centred on the height of the node; the box alone is half a tab higher.
        x, y = sum(spans[layer]) / 2, centre - box.below / 2
        spots.append(_Spot(x - box.width / 2, x + box.width / 2, y))
        shape = {"x": x, "y": y, "width": box.width, "height": box.height}
        shape |= {"name_y": y + box.lift, "sub_y": y + _SUB_BELOW}
        result.add("graph_nodes", **shape, name=box.name, sub=box.sub, **_details(node, program, colours))
        if box.tab:
            tab = {"y": y + (box.height + box.below) / 2, "height": box.below, "text": box.tab}
            result.add("graph_needed", x=x, width=box.width, **tab)
    # Labels come last: they avoid the boxes, and each the labels before it.
    labels = Labels(result.rows.get("graph_nodes", []))
    for edge in edges:
        curves = _curves(edge, spots, spans, layout)
        _add_edge(result, edge, curves, labels)
        _add_touch(result, edge, curves, f"{nodes[edge.source].title} → {nodes[edge.target].title}")
    return result


def _box(node: DrawnNode, program: DrawnProgram, with_place: bool) -> _Box:
    """Return the text of a box."""
    line, count = _needed(node, program)
    times = f" ×{count}" if count > 1 else ""
    tab = f"← value needed{times}\n{_short(line)}" if count else ""
    place = node.node.place
    if not with_place:
        base, ending = _split(node.title)
        return _Box(_short(base), ending, tab)
    if place is None:
        return _Box(_short(node.title), "", tab)
    where = _where(node, program)
    return _Box(_short(node.title), _short(place.label) + (f"\n{_short(where)}" if where else ""), tab)


def _where(node: DrawnNode, program: DrawnProgram) -> str:
    """Return the devices that a node runs on as text; of host work, its island's host."""
    place = node.node.place
    where = program.where.get(place.serial, "") if place else ""
    return f"{where.partition(',')[0]}, host" if where and node.node.kind == "host" else where


def _needed(node: DrawnNode, program: DrawnProgram) -> tuple[str, int]:
    """Return the first line that waited for a value of these nodes, and in how many runs one did."""
    found = [needed for number, needed in program.needed.items() if number in node.ids]
    return (found[0][0] if found else "", sum(count for _, count in found))


_ENDING = re.compile(r"(?: \(\w+\)| \+\d+ ops)?(?: ×\d+)?$")
"""Parts of a name that shortening keeps: ``(bwd)`` or ``+3 ops``, and the count."""


def _split(title: str) -> tuple[str, str]:
    """Return a title's name and its ending."""
    base = _ENDING.sub("", title)
    return base, title[len(base) :].strip()


def _short(text: str) -> str:
    """Return a text shortened in the middle, so that its ending stays."""
    if len(text) <= _LONGEST_NAME:
        return text
    # The ending tells nodes of one name apart, such as forward and backward, so it is never what is cut.
    kept = text[len(_split(text)[0]) :]
    return text[: _LONGEST_NAME - 1 - len(kept)] + "…" + kept


def _details(node: DrawnNode, program: DrawnProgram, colours: Mapping[int, str]) -> dict[str, str]:
    """Return the colours of a box, and what a tooltip and the links between views need."""
    place = node.node.place
    where = _where(node, program)
    outline = colours[place.serial] if place else palette.NEUTRAL
    # Host work has the outline of its slice, and the fill that it has in the timeline.
    filled = palette.KINDS[palette.CODES["host"]].colour if node.node.kind == "host" else outline
    return {
        "fill": palette.pale(filled),
        "outline": outline,
        "title": node.title,
        "kind": node.node.kind,
        "place": " · ".join(filter(None, (place.label if place else "", where))),
        "outputs": f"{node.shapes} ({size(node.bytes)})" if node.shapes else "",
        "line": node.node.line,
        "needed": _needed(node, program)[0],
        "ids": " ".join(node_id(program.graph.name, number) for number in node.ids),
        "parts": ", ".join(node.node.parts[:8]) + (" …" if len(node.node.parts) > 8 else ""),
    }


def _spans(
    widths: Sequence[float], layout: LayeredLayout, edges: Iterable[DrawnEdge], max_width: float
) -> list[tuple[float, float]]:
    """Return the left and right edge of each layer; spaces shrink as far as they can to fit into ``max_width``.

    Args:
        widths: width of each box.
        layout: the layers of the boxes.
        edges: the edges; those that cross a network need space for a label.
        max_width: width in pixels.
    """
    layers = max(layout.layer, default=-1) + 1
    wide = [0.0] * layers
    for width, layer in zip(widths, layout.layer, strict=True):
        wide[layer] = max(wide[layer], width)
    # Only edges that cross a network have a label; room for it is after the layer of their source.
    widths_of_labels = ((layout.layer[edge.source], label_width(edge.label)) for edge in edges if edge.is_transfer)
    needed = dict(sorted(widths_of_labels))  # of the labels after a layer the widest, which comes last
    gaps = [
        (max(_LABEL_GAP[0], needed[layer]), max(_LABEL_GAP[1], needed[layer])) if layer in needed else _GAP
        for layer in range(layers - 1)
    ]
    least, natural = sum(gap[0] for gap in gaps), sum(gap[1] for gap in gaps)
    left_over = max_width - 2 * MARGIN - sum(wide)
    # From 0, the least space, to 1, the natural one: all gaps shrink by the same share.
    share = min(max((left_over - least) / (natural - least), 0.0), 1.0) if gaps else 0.0
    spans, left = [], 0.0
    for layer in range(layers):
        spans.append((left, left + wide[layer]))
        left += wide[layer] + (gaps[layer][0] + share * (gaps[layer][1] - gaps[layer][0]) if layer < len(gaps) else 0)
    return spans


def _curves(
    edge: DrawnEdge, spots: list[_Spot], spans: list[tuple[float, float]], layout: LayeredLayout
) -> list[EdgeCurve]:
    """Return the curves of an edge, from the right of its source through the layers between to the left of its target.

    An edge back to an earlier layer, which folding can make, is one curve below both boxes.
    """
    source, target = spots[edge.source], spots[edge.target]
    if layout.layer[edge.source] >= layout.layer[edge.target]:
        # Out to the right and back to the left, below both boxes, so that the curve does not run through them.
        low = max(source.y, target.y) + 60
        right, left = source.right, target.left
        return [EdgeCurve(right, source.y, left, target.y, right + 40, low, left - 40, low)]
    stops = [(source.right, source.y)]
    for layer, y in layout.bends.get((edge.source, edge.target), []):
        stops += [(spans[layer][0], y), (spans[layer][1], y)]
    stops.append((target.left, target.y))
    curves = []
    for (x0, y0), (x1, y1) in pairwise(stops):  # horizontal at both ends, so that the parts of an edge join smoothly
        middle = (x0 + x1) / 2
        curves.append(EdgeCurve(x0, y0, x1, y1, middle, y0, middle, y1))
    return curves


def _add_edge(result: ProgramPicture, edge: DrawnEdge, curves: list[EdgeCurve], labels: Labels) -> None:
    """Add the curves and the arrow head of an edge; if it crosses a network, a label with bytes and route as well."""
    last = curves[-1]
    if not edge.is_transfer:
        for curve in curves:
            result.add("graph_local", **curve._asdict())
        # A head is drawn around its centre, which is so far before the box that the tip touches the border.
        result.add("graph_heads", x=last.x1 - 3, y=last.y1)
        return
    # The slower network is drawn thicker.
    width = 4.0 if edge.route == "DCN" else 2.5
    for curve in curves:
        result.add("graph_transfers", **curve._asdict(), width=width)
    result.add("graph_arrows", x=last.x1 - 4, y=last.y1)
    x, y = labels.place(curves, edge.label)
    result.add("graph_labels", x=x, y=y, text=edge.label)


def _add_touch(result: ProgramPicture, edge: DrawnEdge, curves: list[EdgeCurve], ends: str) -> None:
    """Add what the pointer finds along an edge: short straight pieces, since curves of Bokeh cannot be pointed at."""
    about = {"ends": ends, "amount": f"{size(edge.bytes)}, {edge.route}", "layouts": edge.layouts or "not recorded"}
    for curve in curves:
        points = [curve.at(step / _PIECES) for step in range(_PIECES + 1)]
        for (x0, y0), (x1, y1) in pairwise(points):
            result.add("graph_touch", x0=x0, y0=y0, x1=x1, y1=y1, **about)


def legend(
    programs: Iterable[DrawnProgram], colours: Mapping[int, str], max_width: float
) -> tuple[ProgramPicture, float]:
    """Return the legend of virtual slices, in rows no wider than ``max_width``, and its height in pixels.

    Args:
        programs: the programs that are drawn.
        colours: colour of each virtual slice, by its serial.
        max_width: width in pixels.
    """
    result, x, y = ProgramPicture(), MARGIN, _LEGEND_ROW / 2 + 2
    named: dict[int, str] = {}
    for program in programs:
        for place in program.graph.places:
            where = program.where.get(place.serial, "")
            label = _short(place.label)
            # A slice that several programs use is named once.
            named.setdefault(place.serial, f"{label} · {where}" if where else label)
    for serial, text in sorted(named.items()):
        width = 34 + len(text) * _LEGEND_LETTER
        if x > MARGIN and x + width > max_width:
            # The next row, unless this entry is the first of its row.
            x, y = MARGIN, y + _LEGEND_ROW
        result.add("graph_chips", x=x + 6, y=y, fill=palette.pale(colours[serial]), outline=colours[serial])
        result.add("graph_legend", x=x + 17, y=y, text=text)
        x += width
    return result, y + _LEGEND_ROW / 2 if named else 0.0
