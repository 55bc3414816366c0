"""Response time of the player of a run's decisions: from a press on "one step on" until words and mark are painted.

The run is simulated: two tenants whose calls wait for each other, so that the policy is asked. Its log keeps all events
of the controller, which a log of this length does not by itself. The browser is started by the ``display`` bench.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pathways_nb as pw
from pathways_nb.session import default_controller

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from pathways_nb.results.run import Run

EVENTS = 100_000
"""Least number of events of the controller, and of the record."""
_ROUND, _EACH = 20, 8
"""Times that the tenants call before Python waits, and the least number of events of the controller each time."""
CELLS = [
    f"from pathways_nb.bench._decision_steps import contested\nrun = contested({EVENTS})",
    "run.steps()",
]
_STEPS = 12
_QUIET = 700
"""Milliseconds between steps."""
_HELPERS = """() => {
  const bokeh = Object.values(globalThis.pathwaysBokeh)[0], doc = bokeh.documents.at(-1)
  const plot = bokeh.index.find_one(doc.get_model_by_name('timeline'))
  const frame = () => new Promise(requestAnimationFrame)
  const words = () => document.querySelector('pre[role=status]').textContent
  const marks = () => ['timeline_step', 'timeline_chosen'].map((name) => doc.get_model_by_name(name).data)
  // What Bokeh has been told to paint and has not painted yet.
  const waits = () => plot._needs_paint || plot._invalidate_all || plot._invalidated_painters?.size > 0
  window.step = async () => {
    const on = [...document.querySelectorAll('button')].find((one) => one.textContent === '▶')
    const said = words(), marked = marks(), began = performance.now()
    // Several decisions may be made at one time, and then the line stays where it is.
    const isShown = () => words() !== said && marks().some((one, i) => one !== marked[i])
    on.click()
    while ((!isShown() || waits()) && performance.now() < began + 20_000) await frame()
    await new Promise((after) => setTimeout(after))
    return performance.now() - began
  }
}"""
"""JavaScript for the page: press, and time the frame after both have changed."""


def contested(events: int) -> Run:
    """Return a simulated run of two tenants, of at least so many events of the controller, all in its log."""
    with pw.attach("sim", chip="tpu_v3", islands=2, devices_per_island=4, policy="stride"):
        session = default_controller.peek()
        assert session is not None
        book = session.driver.event_loop.logbook
        assert book is not None
        book.most = 10 * events
        here, there = (pw.work(1e-3, on=pw.virtual_slice(4, island=island)) for island in (0, 1))
        train, serve, tune = (
            pw.program(work, name=name) for work, name in ((here, "train"), (there, "serve"), (here, "tune"))
        )
        pw.wait([train(), serve(), tune()])
        with pw.record(f"{events:,} events") as run, pw.client("ann", share=2) as ann, pw.client("bob") as bob:
            for _ in range(-(-events // (_EACH * _ROUND))):
                made = []
                for _ in range(_ROUND):
                    with ann.acting():
                        made.append(train())
                    with bob.acting():
                        made += [tune(), serve()]
                pw.wait(made)
    return run


def answers(page: Page) -> list[float]:
    """Return the milliseconds from each press to the frame that shows the next decision.

    Args:
        page: a notebook whose player has been displayed.
    """
    page.evaluate(_HELPERS)
    times = []
    for _ in range(_STEPS):
        page.wait_for_timeout(_QUIET)
        times.append(float(page.evaluate("() => window.step()")))
    return times
