"""Columns of the picture of a step's modules: a level for each group, with its parts as cards and what they read.

A browser shows one level at a time and opens another at a click, so all of them are here. Coordinates are pixels, y
downwards; data flows down. A card has the name of a part, its seconds, and a strip: as long as its share of the longest
part, divided into computation, backward pass, and collectives that nothing hides.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from pathways_nb.trace.launch_ops import BACKWARD
from pathways_nb.trace.metrics import duration, size
from pathways_nb.trace.op_graph import GraphOp, OpGraph
from pathways_nb.util.words import counted
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.views import Columns, node_id
from pathways_widgets.graph.graph_labels import EdgeCurve
from pathways_widgets.graph.layered_layout import layered
from pathways_widgets.graph.module_tree import ModuleGroup, costliest, tree_of

WIDTH = 560.0
"""Width of a level in pixels."""
_CARD, _HIGH, _GAP, _BETWEEN = 172.0, 46.0, 14.0, 30.0
"""Width and height of a card, and the space beside and below it."""
_ACROSS = 3
"""Cards beside each other."""
_TOP, _STRIP, _PIECES = 62.0, 5.0, 5
_LEAST = 0.01
"""Share of the bytes of a level's largest edge that the smallest one has."""
_LONGEST = 25
"""Letters of a name on a card."""
SEGMENTS = (("compute", "compute"), ("backward", "backward"), ("collective", "exposed collective"))
"""Kinds of events whose colours the parts of a strip have, and the words of the legend."""
STRIP = ("begin", "compute", "backward", "collective", "over", "under")
"""Sides of a strip: where it begins, where each of ``SEGMENTS`` ends, and its upper and lower side."""
_PHASES = {"backward": " (bwd)", "recomputed": " (again)"}
"""Endings of names of operations, by their phase."""
COLOURS = {kind: palette.KINDS[palette.CODES[kind]].colour for kind, _ in SEGMENTS}
SOURCES: dict[str, list[str]] = {
    "graph_nodes": [
        *"x y width height fill outline name sub lift".split(),
        *"title kind takes exposed runs line ids opens back level".split(),
        *STRIP,
    ],
    "graph_local": "x0 y0 x1 y1 cx0 cy0 cx1 cy1 level".split(),
    "graph_touch": "x0 y0 x1 y1 ends amount level".split(),
    "graph_heads": "x y level".split(),
    "graph_titles": "x y text level".split(),
    "graph_chips": "left right top bottom fill level".split(),
    "graph_legend": "x y text level".split(),
    "graph_levels": "height line title".split(),
    "graph_texts": "line first text".split(),
}


class _CardSpot(NamedTuple):
    """Centre of a card."""

    x: float
    y: float


def columns_of(graph: OpGraph, program: str) -> dict[str, Columns]:
    """Return the columns of every source.

    Args:
        graph: of the step; empty for nothing.
        program: name of the step, as ops have it.
    """
    pictures = _Pictures(graph, program)
    if graph.ops:
        pictures.add(tree_of(graph, program), -1, ())
    columns: dict[str, Columns] = {
        source: {name: [row[name] for row in pictures.rows.get(source, [])] for name in names}
        for source, names in SOURCES.items()
    }
    for line in dict.fromkeys(columns["graph_nodes"]["line"]):
        if near := graph.texts.around(line):
            texts = columns["graph_texts"]
            texts["line"].append(line)
            texts["first"].append(near[0][0])
            texts["text"].append(textwrap.dedent("\n".join(text for _, text in _without_gaps(near))))
    return columns


def _without_gaps(lines: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    known = dict(lines)
    return [(number, known.get(number, "")) for number in range(lines[0][0], lines[-1][0] + 1)]


class _Pictures:
    """The rows of all levels.

    Args:
        graph: of the step.
        program: name of the step.
    """

    def __init__(self, graph: OpGraph, program: str):
        self.graph, self.program = graph, program
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.levels = 0

    def add(self, group: ModuleGroup, parent: int, above: tuple[ModuleGroup, ...]) -> int:
        """Add the picture of a group and of all groups in it.

        Args:
            group: the group.
            parent: level from which it is opened; -1 for none.
            above: the groups around it, the whole step first.

        Returns:
            The number of its level.
        """
        level, self.levels = self.levels, self.levels + 1
        of_group = [self.graph.ops[at] for at in group.ops]
        self._row("graph_levels", height=0.0, line=costliest(of_group), title=group.name)
        around = *above, group
        self._head(around, level, parent)
        edges = _edges(self.graph, group.parts)
        spots, height = _spots(len(group.parts), edges)
        longest = max((sum(self.graph.ops[at].seconds for at in part.ops) for part in group.parts), default=0.0)
        for part, spot in zip(group.parts, spots, strict=True):
            opens = self.add(part, level, around) if part.parts else -1
            self._card(part, spot, longest, opens, level)
        for (source, target), (there, back) in edges.items():
            ends = f"{group.parts[source].name} → {group.parts[target].name}"
            self._edge(spots[source], spots[target], ends, there, back, level)
        self.rows["graph_levels"][level]["height"] = height
        return level

    def _row(self, source: str, **values: Any) -> None:
        self.rows.setdefault(source, []).append(values)

    def _head(self, around: tuple[ModuleGroup, ...], level: int, parent: int) -> None:
        """Add what stands above the cards of the last group: the way back, where one is, and the legend."""
        ops, left = [self.graph.ops[at] for at in around[-1].ops], 12.0
        names = [one.name for one in around]
        if parent >= 0:
            whole = "" if parent == 0 else self._ids(around[-2].ops)
            about = _about(ops, f"back to {names[-2]}")
            self._row(
                "graph_nodes", x=left + 32, y=20.0, width=64.0, height=24.0, fill=palette.WHITE,
                outline=palette.NEUTRAL, name="↑ back", sub="", lift=0.0, back=1, opens=parent, level=level, ids=whole,
                **about, **dict.fromkeys(STRIP, 20.0),
            )  # fmt: skip
            left += 76
        said = " / ".join(names if len(names) < 4 else [names[0], "…", *names[-2:]])
        exposed = sum(one.exposed for one in ops)
        self._row("graph_titles", x=left, y=20.0, text=_short(said, 56 - int(left / 8)), level=level)
        # What runs at once counts twice, so this is more than the step takes.
        words = f"operations {duration(sum(one.seconds for one in ops))} · {duration(exposed)} exposed"
        self._row("graph_legend", x=12.0, y=44.0, text=words, level=level)
        x = 12.0 + 7.0 * len(words) + 18
        for kind, word in SEGMENTS:
            self._row("graph_chips", left=x - 5, right=x + 5, top=39.0, bottom=49.0, fill=COLOURS[kind], level=level)
            self._row("graph_legend", x=x + 10, y=44.0, text=word, level=level)
            x += 28 + 7.0 * len(word)

    def _ids(self, ops: Sequence[int]) -> str:
        """Return the ids that link operations with their bars in the timeline."""
        numbers = dict.fromkeys(number for at in ops for number in self.graph.nodes_of(at))
        return " ".join(node_id(self.program, number) for number in numbers)

    def _card(self, part: ModuleGroup, spot: _CardSpot, longest: float, opens: int, level: int) -> None:
        """Add the card of a part of a group.

        Args:
            part: of the group.
            spot: centre of the card.
            longest: seconds of the longest part.
            opens: level that a click opens; -1 for none.
            level: of the group.
        """
        ops = [self.graph.ops[at] for at in part.ops]
        # What stands for several kinds of work has no kind's colour.
        alike = not part.parts and len(ops) == 1
        fill, outline = (_colour(ops[0]),) * 2 if alike else (palette.GREY, palette.NEUTRAL)
        seconds, exposed = sum(one.seconds for one in ops), sum(one.exposed for one in ops)
        # What the sums of seconds leave below a nanosecond is nothing.
        sub = duration(seconds) + (f" · {duration(exposed)} exposed" if exposed > 1e-9 else "")
        # The phase of an operation is said in words, too: two cards may differ in it alone.
        ending = " ▸" if opens >= 0 else _PHASES.get(ops[0].phase, "") if alike else ""
        name = _short(part.name, _LONGEST - len(ending)) + ending
        about = _about(ops, part.name)
        self._row(
            "graph_nodes", x=spot.x, y=spot.y, width=_CARD, height=_HIGH, fill=palette.pale(fill), outline=outline,
            name=name, sub=sub, lift=-10.0, back=0, opens=opens, level=level, ids=self._ids(part.ops),
            **about, **_strip(ops, spot, longest),
        )  # fmt: skip

    def _edge(self, one: _CardSpot, other: _CardSpot, ends: str, there: float, back: float, level: int) -> None:
        """Add the curve of what one part reads of another, and what the pointer finds along it."""
        x0, y0, x1, y1 = one.x, one.y + _HIGH / 2, other.x, other.y - _HIGH / 2
        if one.y == other.y:  # in one row: from side to side
            side = _CARD / 2 if other.x > one.x else -_CARD / 2
            x0, y0, x1, y1 = one.x + side, one.y, other.x - side, other.y
            curve = EdgeCurve(x0, y0, x1, y1, (x0 + x1) / 2, y0, (x0 + x1) / 2, y1)
        else:
            curve = EdgeCurve(x0, y0, x1, y1 - 4, x0, (y0 + y1) / 2, x1, (y0 + y1) / 2)
            self._row("graph_heads", x=x1, y=y1 - 4, level=level)
        self._row("graph_local", **curve._asdict(), level=level)
        amount = " · ".join(
            f"{size(amount)} a step{word}" for amount, word in ((there, ""), (back, " backwards")) if amount
        )
        points = [curve.at(step / _PIECES) for step in range(_PIECES + 1)]
        for (a, b), (c, d) in pairwise(points):
            self._row("graph_touch", x0=a, y0=b, x1=c, y1=d, ends=ends, amount=amount, level=level)


def _strip(ops: Sequence[GraphOp], spot: _CardSpot, longest: float) -> dict[str, float]:
    """Return the sides of the strip at the lower side of a card, without length where operations take no time.

    Args:
        ops: of the card.
        spot: its centre.
        longest: seconds for which a strip is as long as a card.
    """
    parts = (
        sum(one.seconds for one in ops if one.kind == "compute" and one.phase not in BACKWARD),
        sum(one.seconds for one in ops if one.kind == "compute" and one.phase in BACKWARD),
        sum(one.exposed for one in ops),
    )
    full, under = (_CARD - 12) / (longest or 1.0), spot.y + _HIGH / 2 - 4
    ends = accumulate((full * part for part in parts), initial=spot.x - _CARD / 2 + 6)
    return dict(zip(STRIP, (*ends, under - _STRIP, under), strict=True))


def _about(ops: Sequence[GraphOp], title: str) -> dict[str, Any]:
    """Return what a tooltip says of operations."""
    kinds = dict.fromkeys(f"{one.kind} {one.phase}".strip() for one in ops)
    return {
        "title": title,
        "kind": ", ".join([*kinds][:4]) + (" …" if len(kinds) > 4 else ""),
        "takes": sum(one.seconds for one in ops),
        "exposed": sum(one.exposed for one in ops),
        "runs": counted(round(sum(one.times for one in ops)), "execution") + " a step",
        "line": costliest(ops),
    }


def _edges(graph: OpGraph, parts: Sequence[ModuleGroup]) -> dict[tuple[int, int], tuple[float, float]]:
    """Return what parts read of each other: pairs in the order of the parts, with the bytes on and back.

    Args:
        graph: of the step.
        parts: in the order in which they begin, so that data flows down.
    """
    owner = {at: number for number, part in enumerate(parts) for at in part.ops}
    found: dict[tuple[int, int], tuple[float, float]] = {}
    for edge in graph.edges:
        one, other = owner.get(edge.source), owner.get(edge.target)
        if one is None or other is None or one == other:
            continue
        pair = min(one, other), max(one, other)
        there, back = found.get(pair, (0.0, 0.0))
        found[pair] = (there + edge.bytes, back) if one < other else (there, back + edge.bytes)
    # Numbers and small vectors are read everywhere: their edges would hide those that carry something.
    least = _LEAST * max(map(sum, found.values()), default=0.0)
    return {pair: amounts for pair, amounts in found.items() if sum(amounts) >= least}


def _spots(count: int, edges: Mapping[tuple[int, int], Any]) -> tuple[list[_CardSpot], float]:
    """Return where the cards of a level are, and its height.

    Args:
        count: number of cards.
        edges: pairs of positions; the first of a pair is above.
    """
    layout = layered([_CARD] * count, [*edges], _GAP)
    rows: dict[int, list[int]] = {}
    for at in range(count):
        rows.setdefault(layout.layer[at], []).append(at)
    spots: list[_CardSpot] = [_CardSpot(0.0, 0.0)] * count
    y = _TOP + _HIGH / 2
    for layer in sorted(rows):
        those = sorted(rows[layer], key=lambda at: layout.y[at])
        for begin in range(0, len(those), _ACROSS):
            some = those[begin : begin + _ACROSS]
            for number, at in enumerate(some):
                x = WIDTH / 2 + (number - (len(some) - 1) / 2) * (_CARD + _GAP)
                spots[at] = _CardSpot(x, y)
            y += _HIGH + (_BETWEEN if begin + _ACROSS >= len(those) else _GAP)
    return spots, y - _HIGH / 2


def _colour(op: GraphOp) -> str:
    """Return the colour that an operation has in the timeline."""
    kind = "backward" if (op.kind, op.phase) == ("compute", "backward") else op.kind
    return palette.KINDS[palette.code_of(f"op {kind}", op.name)].colour


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
