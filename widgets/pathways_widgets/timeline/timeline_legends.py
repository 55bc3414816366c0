"""The legends of a timeline: a click on an entry hides its kind, in the browser, so that it works without a kernel."""

from __future__ import annotations

from collections.abc import Sequence

from bokeh.models import BooleanFilter, CustomJS, CustomJSFilter, GlyphRenderer, LegendItem
from bokeh.plotting import figure

from pathways_widgets.drawing import palette
from pathways_widgets.drawing.box_marks import BoxMark
from pathways_widgets.drawing.legends import Swatch, add_legend, named_renderer, swatch_items
from pathways_widgets.drawing.palette import DASHES
from pathways_widgets.drawing.style import Style
from pathways_widgets.drawing.views import empty_source
from pathways_widgets.timeline.event_filter import SEEN
from pathways_widgets.timeline.ghost_columns import OUTLINE
from pathways_widgets.timeline.happened_columns import LEGEND as HAPPENED_LEGEND
from pathways_widgets.timeline.happened_columns import TAG
from pathways_widgets.timeline.transfer_columns import ARROW_HEAD, ARROW_LINE, ARROW_SWATCH, MOST_SHOWN

GHOST_SWATCH = Swatch("last time", OUTLINE, "timeline_key_ghost")
LEGENDS = (
    *(
        tuple(
            Swatch(
                kind.words,
                BoxMark(fill=kind.colour, hatch=palette.HATCHES.get(kind.pattern, "")),
                f"timeline_kind_{kind.name}",
                kind.letter,
            )
            for kind in kinds
        )
        for kinds in (palette.CONTROLLER_KINDS, palette.DEVICE_KINDS)
    ),
    tuple(
        Swatch(palette.GUESSES[name], BoxMark(line=palette.BOX_EDGE, dash=dash), f"timeline_key_{name}")
        for name, dash in DASHES.items()
    ),
    (GHOST_SWATCH, ARROW_SWATCH),
    HAPPENED_LEGEND,
)
"""The legends from the lanes upwards: work of the controller, work on devices, guessed times, the last run, what
happened to all.

Entries that explain nothing in a picture are not visible.
"""


def draw_legends(fig: figure, style: Style) -> None:
    """Add the legends, whose entries hide their kind, or the dashed edges."""
    rows = [swatch_items(fig, swatches, style) for swatches in LEGENDS[:3]]
    # In the order of ``palette.KINDS``: the script takes the position of a swatch for the code of its kind.
    _filter(fig, [item.renderers[0] for items in (rows[1], rows[0]) for item in items])
    for name, item in zip(DASHES, rows[-1], strict=True):
        # A click hides all renderers of an entry: the swatch, and the edges themselves.
        item.renderers += [named_renderer(fig, f"timeline_{name}_edges")]
    # What is drawn explains itself: these entries need no swatch.
    rows.append([_entry(fig, OUTLINE.renderer, {"value": GHOST_SWATCH.text}, GHOST_SWATCH.name)])
    rows[-1].append(_entry(fig, ARROW_LINE.renderer, {"value": ARROW_SWATCH.text}, ARROW_SWATCH.name))
    rows[-1][-1].renderers += [named_renderer(fig, ARROW_HEAD.renderer)]
    rows.append([_entry(fig, TAG.renderer, {"field": "words"})])
    for position, items in enumerate(rows):
        # What happened is one table: its entries explain and hide nothing.
        policy = "none" if position == len(rows) - 1 else "hide"
        add_legend(fig, f"timeline_legend{position}", items, style, policy)


def _entry(fig: figure, renderer: str, label: dict[str, str], name: str | None = None) -> LegendItem:
    """Return an entry that shows the look of what is drawn."""
    return LegendItem(label=label, renderers=[named_renderer(fig, renderer)], name=name)


def _filter(fig: figure, swatches: Sequence[GlyphRenderer]) -> None:
    """Show of the boxes, and what is drawn over them, what the legend, the row of clients and the filter leave."""
    # Filled by the page: the numbers of hidden clients; its tags are the other conditions (``event_filter``).
    hidden = empty_source("timeline_hidden", ["client"])
    boxes = next(one for one in fig.renderers if one.data_source.name == "timeline_boxes").data_source
    seen = CustomJSFilter(args={"swatches": list(swatches), "hidden": hidden, "boxes": boxes}, code=SEEN)
    changed = CustomJS(args={"seen": seen}, code="seen.change.emit()")
    for name in ("data", "tags"):
        hidden.js_on_change(name, changed)
    for swatch in swatches:
        swatch.js_on_change("visible", changed)
    for renderer in fig.renderers:
        if renderer.data_source is boxes or "box" in renderer.data_source.data:
            # One filter for boxes, texts and patterns, so that they are hidden together.
            renderer.view.filter = seen
    # Of arrows there may be more than can be told apart; ``arrows.js`` says which are shown.
    few = BooleanFilter(name="timeline_arrows_few", tags=[MOST_SHOWN])
    for one in (ARROW_LINE, ARROW_HEAD):
        named_renderer(fig, one.renderer).view.filter = seen & few
