"""The table of collectives beside the source, as HTML without scripts: readable without a kernel, in any theme.

Colours are laid over the page with some transparency, so that text keeps the colour of the theme. What colour says is
said in words as well: seconds stand beside hot lines, and a flag has a sign.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from pathways_nb.adopt.collective_line import CollectiveLine
from pathways_nb.errors import size
from pathways_nb.plan.source_texts import SourceTexts, parts_of
from pathways_nb.trace.metrics import duration
from pathways_nb.util.words import counted
from pathways_widgets.drawing import palette

_AROUND = 2
"""Lines shown above and below each hot one."""
_FULL = 0x90
"""Opacity of the hottest line, of 255."""
_ALL = ".pw-collectives" * 3
"""Selector of the table: three times, so that its rules come before those of JupyterLab for any table."""
_STYLE = f"""<style>
{_ALL} {{ display: flex; flex-wrap: wrap; gap: 8px 20px; align-items: flex-start; font-size: 12px }}
{_ALL} > details {{ flex: 0 1 auto; max-width: 100%; overflow-x: auto }}
{_ALL} > details + details {{ flex: 1 1 300px; min-width: 0 }}
{_ALL} > details > summary {{ cursor: pointer; font-weight: bold; padding: 4px 0 }}
{_ALL} table {{ border-collapse: collapse; margin: 0; table-layout: auto; font-size: 12px }}
{_ALL} tr {{ background: none }}
{_ALL} th, {_ALL} td {{ text-align: left; vertical-align: top; padding: 3px 10px 3px 6px; max-width: none;
  white-space: nowrap; border: none; border-bottom: 1px solid #8884; background: none }}
{_ALL} .number {{ text-align: right; font-variant-numeric: tabular-nums }}
{_ALL} code {{ background: none; color: inherit; padding: 0; font-size: 12px; white-space: pre }}
{_ALL} .code {{ display: block; max-width: 32ch; overflow: hidden; text-overflow: ellipsis }}
{_ALL} .soft {{ opacity: 0.75 }}
{_ALL} .flag {{ display: block; white-space: normal; max-width: 30ch; padding-left: 6px;
  border-left: 3px solid {palette.VERMILION}; background: {palette.VERMILION}30 }}
{_ALL} tr.flagged > td:first-child {{ box-shadow: inset 3px 0 {palette.VERMILION} }}
{_ALL} .source td {{ padding: 0 8px; border: none; line-height: 1.45 }}
{_ALL} .source .number {{ opacity: 0.75 }}
</style>"""


def html_of(rows: Sequence[CollectiveLine], texts: SourceTexts) -> str:
    """Return the table, and beside it the lines of the file whose collectives are exposed longest.

    Each row has its position in ``data-collective``, each flagged one the class ``flagged``.

    Args:
        rows: of the table, in their order.
        texts: of their lines, as far as they are known.
    """
    if not rows:
        return "<div>no collectives</div>"
    most = max(row.exposed for row in rows)
    heads = "".join(
        f'<th class="{"number" if is_number else ""}">{name}</th>'
        for name, is_number in (
            ("exposed", True), ("line", False), ("collective", False),
        )
    )  # fmt: skip
    body = "".join(_row(number, row, texts, most) for number, row in enumerate(rows))
    total = f"{duration(sum(row.exposed for row in rows))} exposed of {duration(sum(row.seconds for row in rows))}"
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    shown = f"<details open><summary>Collectives of a step: {total}</summary>{table}</details>"
    return f'{_STYLE}<div class="pw-collectives">{shown}{_source(rows, texts)}</div>'


def _row(number: int, row: CollectiveLine, texts: SourceTexts, most: float) -> str:
    text = escape(texts.text_of(row.line))
    where = escape(row.line or "no line") + (f" · {escape(row.scope)}" if row.scope else "")
    code = f'<code class="code" title="{text}">{text}</code>' if text else ""
    flag = f'<span class="flag">⚠ {escape(row.flag)}</span>' if row.flag else ""
    over = f" over {', '.join(row.axes)}" if row.axes else ""
    group = f"{row.devices} devices on {counted(row.hosts, 'host')}{over}"
    return (
        f'<tr data-collective="{number}"{" class=flagged" if row.flag else ""}>'
        f'<td class="number" style="background: {_heat(row.exposed, most)}">{duration(row.exposed)}<br>'
        f'<span class="soft">of {duration(row.seconds)}</span></td>'
        f'<td>{code}<span class="soft">{where}</span></td>'
        f"<td>{escape(row.kind)} · {row.count:.0f} × {size(row.bytes)}<br>"
        f'<span class="soft">{escape(group)}</span>{flag}</td></tr>'
    )


def _source(rows: Sequence[CollectiveLine], texts: SourceTexts) -> str:
    """Return the lines of the file with most exposed seconds, each with its own; empty if no file is known."""
    exposed: dict[str, dict[int, float]] = {}
    for row in rows:
        file, number = parts_of(row.line)
        if file in texts.files:
            of_file = exposed.setdefault(file, {})
            of_file[number] = of_file.get(number, 0.0) + row.exposed
    if not exposed:
        return ""
    file = max(exposed, key=lambda one: sum(exposed[one].values()))
    of_lines = exposed[file]
    # Texts are kept for the operations of a step as well; here those around its collectives are shown.
    near = {number + by for number in of_lines for by in range(-_AROUND, _AROUND + 1)}
    lines = "".join(_lines([one for one in texts.files[file] if one[0] in near], of_lines))
    said = f"{escape(file)}: {duration(sum(of_lines.values()))} exposed, by line"
    return f'<details open><summary>{said}</summary><table class="source"><tbody>{lines}</tbody></table></details>'


def _lines(lines: Sequence[tuple[int, str]], exposed: dict[int, float]) -> Iterator[str]:
    """Yield rows of the source; hot ones are marked."""
    most, before = max(exposed.values()), 0
    for number, text in lines:
        if before and number > before + 1:
            yield '<tr><td></td><td class="number">⋯</td><td></td></tr>'
        before = number
        took = exposed.get(number)
        look = f' style="background: {_heat(took, most)}"' if took is not None else ""
        said = "" if took is None else duration(took)
        yield (
            f'<tr{look}><td class="number">{said}</td><td class="number">{number}</td>'
            f"<td><code>{escape(text)}</code></td></tr>"
        )


def _heat(amount: float, most: float) -> str:
    """Return the colour of an amount, to be laid over the page."""
    return f"{palette.ORANGE}{round(_FULL * (amount / most if most else 0.0)):02X}"
