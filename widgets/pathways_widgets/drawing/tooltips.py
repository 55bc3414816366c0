"""Tooltips, described once: which rows they have, and which of their values are times or sizes.

Bokeh makes the text in the browser, so units of times and bytes are chosen there, by scripts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from bokeh.models import CustomJSHover, GlyphRenderer, HoverTool

from pathways_widgets.drawing.terms import TERMS

_SECONDS = """
    const size = Math.abs(value), [unit, scale] = size >= 1 ? ["s", 1] : size >= 1e-3 ? ["ms", 1e3] : ["µs", 1e6]
    return `${Number((value * scale).toPrecision(4))} ${unit}`
"""
_BYTES = """
    if (!value) return ""
    const units = ["B", "KB", "MB", "GB", "TB"]
    let left = value, unit = 0
    while (left >= 999.5 && unit < 4) { left /= 1000; unit += 1 }
    return `${left.toFixed(unit && left < 99.95 ? 1 : 0)} ${units[unit]}`
"""
_RATE = f"const text = (() => {{ {_BYTES} }})(); return text && `${{text}}/s`"
_RUN = "return value < 0 ? '' : `, run ${value}`"
"""Script: the number of a call behind its program; of what belongs to none, nothing."""
_MEANING = f"return ({json.dumps(TERMS)})[value] ?? ''"
"""Script: a word of the field in plain words, or nothing."""
_LABELLED = """
    const text = (() => { %s })()
    return text && `${label}: ${text}`
"""
"""Script: a value behind its label, or nothing."""


class Tooltip(NamedTuple):
    """What the pointer finds at a mark.

    Args:
        rows: pairs of a label and Bokeh's format, such as ``("takes", "@duration{custom}")``.
        seconds: columns that are shown in a suitable unit of time where their format is ``{custom}``.
        sizes: columns of bytes, shown in a suitable unit there.
        optional: labels that are left out where the first column of their row is empty.
        terms: columns of words, of which plain words are shown where their format is ``{custom}`` (``terms.TERMS``).
        rates: columns of bytes per second, shown in a suitable unit where their format is ``{custom}``.
        in_toolbar: whether the toolbar has a button for it.
        most: how many marks under the pointer are told; ``None`` for all.
    """

    rows: tuple[tuple[str, str], ...]
    seconds: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    rates: tuple[str, ...] = ()
    in_toolbar: bool = True
    most: int | None = None

    def tool(self, renderers: Sequence[GlyphRenderer]) -> HoverTool:
        """Return Bokeh's tool that shows this over ``renderers``."""
        formatters = {
            f"@{column}": CustomJSHover(code=code)
            for columns, code in (
                (self.seconds, _SECONDS),
                (self.sizes, _BYTES),
                (self.rates, _RATE),
                (self.terms, _MEANING),
                (("run",) if any("@run{custom}" in value for _, value in self.rows) else (), _RUN),
            )
            for column in columns
        }
        rows = []
        for label, value in self.rows:
            # The first column of a row: its format begins with ``@column``, perhaps followed by ``{custom}``.
            column = value.split("{")[0].split()[0]
            if label in self.optional:  # Bokeh shows every label, so this one is made with the value
                script = formatters[column].code if column in formatters else "return value"
                formatters[column] = CustomJSHover(args={"label": label}, code=_LABELLED % script)
                label, value = "", value if "{custom}" in value else value.replace(column, f"{column}{{custom}}")
            rows.append((label, value))
        tool = HoverTool(renderers=list(renderers), tooltips=rows, formatters=formatters, visible=self.in_toolbar)
        if self.most is not None:
            tool.limit = self.most
        return tool
