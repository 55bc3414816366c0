"""Response time of the schedule explorer: from a changed time to both pictures repainted, at 16 x 128.

Measured in a real JupyterLab and a real Chromium: the clock starts when the field reports its change and stops after
the frame in which the pixels of both pictures differ from before. Pixels are compared because a message that has
arrived is not yet a picture. The browser is started by the ``display`` bench, which reports the figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHANGES = 12
"""Changes of the time of F for each pair; the figure is the median over those of the first two pairs."""
PAIRS = (("gpipe", "1f1b"), ("1f1b", "interleaved-1f1b"), ("zb-v", "terapipe"))
"""Pairs of schedules to show; the last has the most cells, 28,672."""
_QUIET = 1500
"""Milliseconds between changes, enough for all effects of one change, its still picture included, to be over."""
CELL = "pw.explore_schedules({!r}, {!r}, devices=16, microbatches=128)"
"""The cell that shows a pair."""
_DRAWN = """globalThis.pathwaysBokeh &&
  Object.values(globalThis.pathwaysBokeh)[0].documents.at(-1)?.get_model_by_name('schedules_idle')?.data.top.length"""
"""JavaScript that is true once a pair has been drawn."""
_HELPERS = """() => {
  const bokeh = Object.values(globalThis.pathwaysBokeh)[0], doc = bokeh.documents.at(-1)
  const model = (name) => doc.get_model_by_name(name)
  const canvases = (root) => [...root.querySelectorAll('*')].flatMap((one) =>
    [...one.shadowRoot ? canvases(one.shadowRoot) : [], ...one.tagName === 'CANVAS' ? [one] : []])
  const rows = () => {
    const {top, bottom} = model('schedules_idle').data, scale = bokeh.index.find_one(model('schedules')).frame.y_scale
    return [1, 3].map((part) => Math.floor(top.length * part / 4)).map((i) => scale.compute((top[i] + bottom[i]) / 2))
  }
  window.change = (value) => new Promise((done) => {
    const canvas = canvases(document.querySelector('.pathways-figure'))
      .reduce((one, other) => other.width * other.height > one.width * one.height ? other : one)
    const places = rows(), context = canvas.getContext('2d')
    const look = () => places.map((y) => context.getImageData(0, Math.round(y), canvas.width, 1).data.join())
    const label = [...document.querySelectorAll('.widget-label')].find((one) => one.textContent === 'F')
    const field = label.parentElement.querySelector('input'), before = look(), began = performance.now()
    field.value = value
    field.dispatchEvent(new Event('change', {bubbles: true}))
    const afterFrame = () => requestAnimationFrame(() => setTimeout(check))
    const check = () => {
      const now = look()
      if (now.every((row, i) => row !== before[i])) done(performance.now() - began)
      else afterFrame()
    }
    afterFrame()
  })
}"""
"""JavaScript for the page: change the field F, and time the frame in which a row of pixels of both pictures differs."""


def answers(page: Page, changes: int = CHANGES) -> list[float]:
    """Return the milliseconds from each change of the time of F to the frame that shows it.

    Args:
        page: a notebook whose explorer has been displayed.
        changes: number of changes.
    """
    page.wait_for_function(_DRAWN, timeout=120_000)
    page.evaluate(_HELPERS)
    times = []
    for number in range(changes):
        page.wait_for_timeout(_QUIET)
        times.append(float(page.evaluate("value => change(value)", f"{1.05 + number / 20:g}")))
    return times


def summary(times: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, Any]:
    """Return figures and details of the milliseconds that ``answers`` found for each of ``PAIRS``."""
    usual = [time for pair in PAIRS[:2] for time in times[pair]]
    what = "from a changed time to both pictures painted, 16 x 128"
    detail = {f"{what}, {' and '.join(pair)}, ms": [round(time) for time in found] for pair, found in times.items()}
    return {"figures": {"explorer_ms_16x128": median(usual)}, "detail": detail}
