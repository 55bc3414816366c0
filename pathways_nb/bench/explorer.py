"""How soon the explorer of schedules answers: from a changed time to both pictures repainted, at 16 x 128.

Measured in a real JupyterLab and a real Chromium: the clock starts as the field says that it has changed and stops
after the frame in which the pixels of both pictures have become others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHANGES = 12
"""Of the time of F, for each pair."""
PAIRS = (("gpipe", "1f1b"), ("1f1b", "interleaved-1f1b"), ("zb-v", "terapipe"))
"""The last has most cells, 28,672."""
_QUIET = 1500
"""Milliseconds after which a change is over, its still picture included, and the next is made."""
CELL = "pw.explore_schedules({!r}, {!r}, devices=16, microbatches=128)"
_DRAWN = """globalThis.pathwaysBokeh &&
  Object.values(globalThis.pathwaysBokeh)[0].documents.at(-1)?.get_model_by_name('schedules_idle')?.data.top.length"""
_HELPERS = """() => {
  const bokeh = Object.values(globalThis.pathwaysBokeh)[0], model = (name) => bokeh.documents.at(-1).get_model_by_name(name)
  const canvases = (root) => [...root.querySelectorAll('*')].flatMap((one) =>
    [...one.shadowRoot ? canvases(one.shadowRoot) : [], ...one.tagName === 'CANVAS' ? [one] : []])
  const rows = () => {
    const {top, bottom} = model('schedules_idle').data, scale = bokeh.index.find_one(model('schedules')).frame.y_scale
    return [1, 3].map((part) => Math.floor(top.length * part / 4)).map((i) => scale.compute((top[i] + bottom[i]) / 2))
  }
  const look = (rows) => {
    const all = canvases(document.querySelector('.pathways-figure'))
    const canvas = all.reduce((one, other) => other.width * other.height > one.width * one.height ? other : one)
    return rows.map((row) => canvas.getContext('2d').getImageData(0, Math.round(row), canvas.width, 1).data.join())
  }
  window.change = (value) => new Promise((done) => {
    const label = [...document.querySelectorAll('.widget-label')].find((one) => one.textContent === 'F')
    const field = label.parentElement.querySelector('input'), places = rows(), before = look(places)
    const began = performance.now()
    field.value = value
    field.dispatchEvent(new Event('change', {bubbles: true}))
    const check = () => {
      const now = look(places)
      if (now.every((row, i) => row !== before[i])) setTimeout(() => done(performance.now() - began))
      else requestAnimationFrame(check)
    }
    requestAnimationFrame(check)
  })
}"""


def answers(page: Page, changes: int = CHANGES) -> list[float]:
    """Milliseconds from a change of the time of F to the frame that shows it, of each change."""
    page.wait_for_function(_DRAWN, timeout=120_000)
    page.evaluate(_HELPERS)
    times = []
    for number in range(changes):
        page.wait_for_timeout(_QUIET)
        times.append(float(page.evaluate("value => change(value)", f"{1.05 + number / 20:g}")))
    return times
