"""Response time of the explorers: from a changed number to the pictures repainted.

Measured in a real JupyterLab and a real Chromium: the clock starts when the field reports its change and stops after
the frame in which the pixels of each picture differ from before. Pixels are compared because a message that has
arrived is not yet a picture. The browser is started by the ``display`` bench, which reports the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from playwright.sync_api import Page


class Explored(NamedTuple):
    """An explorer whose response is measured.

    Args:
        what: it shows, in words.
        cell: that shows it.
        drawn: name of the model whose data is there once it has been drawn.
        parts: JavaScript that returns what to compare: canvases, each with left, top, width and height in
            pixels.
        changes: fields with their values, in order.
        figure: to whose median its times belong; empty if only told in detail.
    """

    what: str
    cell: str
    drawn: str
    parts: str
    changes: Sequence[tuple[str, float]]
    figure: str = ""


CHANGES = 12
"""Changes in each explorer."""
_QUIET = 1500
"""Milliseconds between changes, enough for all effects of one change, its still picture included, to be over."""
_TWO_PICTURES = """() => {
  const {top, bottom} = model('schedules_idle').data, scale = bokeh.index.find_one(model('schedules')).frame.y_scale
  const canvas = canvases(document.querySelector('.pathways-figure'))
    .reduce((one, other) => other.width * other.height > one.width * one.height ? other : one)
  return [1, 3].map((part) => Math.floor(top.length * part / 4))
    .map((i) => [canvas, 0, Math.round(scale.compute((top[i] + bottom[i]) / 2)), canvas.width, 1])
}"""
"""A device's row of each of two schedules, which are one figure."""
_TWO_FIGURES = """() => {
  const [slices, terms] = ['tokens_slices', 'tokens_terms'].map((name) => bokeh.index.find_one(model(name)))
  const heading = [slices.frame.bbox.left, slices.frame.bbox.top, 300, 18]
  const bar = [Math.round(terms.frame.x_scale.compute(0)), terms.frame.bbox.top, 1, terms.frame.bbox.height]
  return [[canvases(slices.shadow_el)[0], ...heading], [canvases(terms.shadow_el)[0], ...bar]]
}"""
"""The heading of the optimum's slices, and the optimum's bar; the cost surface may stay as it is."""
_TIMES = [("F", 1.05 + number / 20) for number in range(CHANGES)]
_SIZES = [
    ("stages", 50.0),
    ("stages", 60.0),
    ("length", 4096.0),
    ("stages", 80.0),
    ("length", 3072.0),
    ("stages", 96.0),
]


def _pair(first: str, second: str, figure: str = "explorer_ms_16x128") -> Explored:
    """Return the explorer of two schedules at 16 x 128."""
    return Explored(
        f"from a changed time to both pictures painted, 16 x 128, {first} and {second}, ms",
        f"pw.explore_schedules({first!r}, {second!r}, devices=16, microbatches=128)",
        "schedules_idle", _TWO_PICTURES, _TIMES, figure,
    )  # fmt: skip


EXPLORERS = (
    _pair("gpipe", "1f1b"),
    _pair("1f1b", "interleaved-1f1b"),
    _pair("zb-v", "terapipe", ""),
    Explored(
        "from a changed number of stages or tokens to slices and bars painted, ms",
        "pw.terapipe.explore()", "tokens_boxes", _TWO_FIGURES, 2 * _SIZES, "token_explorer_ms",
    ),
)  # fmt: skip
"""The explorers; the last pair of schedules has the most cells, 28,672."""
_DRAWN = """globalThis.pathwaysBokeh &&
  Object.values(globalThis.pathwaysBokeh)[0].documents.at(-1)?.get_model_by_name('%s')?.data.top.length"""
"""JavaScript that is true once an explorer has been drawn."""
_HELPERS = """() => {
  const bokeh = Object.values(globalThis.pathwaysBokeh)[0], doc = bokeh.documents.at(-1)
  const model = (name) => doc.get_model_by_name(name)
  const canvases = (root) => [...root.querySelectorAll('*')].flatMap((one) =>
    [...one.shadowRoot ? canvases(one.shadowRoot) : [], ...one.tagName === 'CANVAS' ? [one] : []])
  const parts = %s
  window.change = ([name, value]) => new Promise((done) => {
    const watched = parts().map(([canvas, ...box]) => [canvas.getContext('2d'), box])
    const look = () => watched.map(([pixels, box]) => pixels.getImageData(...box).data.join())
    const label = [...document.querySelectorAll('.widget-label')].find((one) => one.textContent === name)
    const field = label.parentElement.querySelector('input'), before = look(), began = performance.now()
    field.value = value
    field.dispatchEvent(new Event('change', {bubbles: true}))
    const afterFrame = () => requestAnimationFrame(() => setTimeout(check))
    const check = () => {
      const now = look()
      if (now.every((part, i) => part !== before[i])) done(performance.now() - began)
      else afterFrame()
    }
    afterFrame()
  })
}"""
"""JavaScript for the page: change a field, and time the frame in which the pixels of each part differ."""


def answers(page: Page, explored: Explored) -> list[float]:
    """Return the milliseconds from each change of a field to the frame that shows it.

    Args:
        page: a notebook whose explorer has been displayed.
        explored: which one.
    """
    page.wait_for_function(_DRAWN % explored.drawn, timeout=120_000)
    page.evaluate(_HELPERS % explored.parts)
    times = []
    for name, value in explored.changes:
        page.wait_for_timeout(_QUIET)
        times.append(float(page.evaluate("change => window.change(change)", [name, f"{value:g}"])))
    return times


def summary(times: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return figures and details of the milliseconds that ``answers`` found for each of ``EXPLORERS``."""
    found: dict[str, list[float]] = {}
    for one, milliseconds in zip(EXPLORERS, times, strict=True):
        if one.figure:
            found.setdefault(one.figure, []).extend(milliseconds)
    detail = {one.what: [round(time) for time in each] for one, each in zip(EXPLORERS, times, strict=True)}
    return {"figures": {name: median(each) for name, each in found.items()}, "detail": detail}
