"""The player of a run's decisions in a real JupyterLab: steps forward and back change the text and the mark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pathways_nb.bench.lab import LabServer
from tests.browser.test_lab import SHOTS, open_notebook, run_all, wait_until_done, wait_until_painted

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
_RUN = """\
import pathways_nb as pw
with pw.attach("sim", chip="tpu_v3", islands=2, devices_per_island=4, policy="stride"):
    stage = [pw.work(seconds, on=pw.virtual_slice(4, island=at)) for at, seconds in enumerate((3e-3, 2e-3))]
    for at, one in enumerate(stage):
        one.name = f"stage{at}"
    train, evaluate = pw.program(lambda: (stage[0](), stage[1]()), name="train"), pw.program(stage[0], name="eval")
    pw.wait([train(), evaluate()])
    with pw.record("two tenants") as run, pw.client("ann", share=2) as ann, pw.client("bob") as bob:
        made = []
        for _ in range(6):
            with ann.acting():
                made.append(train())
            with bob.acting():
                made.append(evaluate())
        pw.wait(made)
run.save("two.run")"""
_PLAY = "pw.load('two.run').steps()"
_MODEL = "Object.values(globalThis.pathwaysBokeh)[0].documents.at(-1).get_model_by_name"


def _words(page: Page) -> str:
    return page.locator("pre[role=status]").inner_text()


def _at(page: Page) -> float:
    return float(page.evaluate(f"Array.from({_MODEL}('timeline_step').data.x0)[0]"))


def test_steps_of_a_loaded_run_go_forward_and_back(chromium: Browser, lab: LabServer) -> None:
    lab.write("player.ipynb", [_RUN, _PLAY])
    page, trouble = open_notebook(chromium, lab, "player.ipynb")
    run_all(page)
    page.locator("pre[role=status]").wait_for()
    wait_until_done(page)
    wait_until_painted(page)
    first, began = _words(page), _at(page)
    assert "no other client has work: the whole program goes to all its islands at once" in first
    field = page.locator(".widget-inline-hbox", has=page.locator("label:text-is('rule')")).locator("select")
    field.select_option("policy")
    page.locator("pre:has-text('the policy saw')").wait_for()
    here, at = _words(page), _at(page)
    assert at > began
    assert here != first
    page.locator("button:text-is('▶')").click()
    page.get_by_text(", 2 of ").wait_for()
    after = _words(page)
    assert after != here
    assert "→  stage0 of " in after
    assert _at(page) > at
    assert page.locator(".pathways-headline").inner_text().endswith(" — the policy chose it of 2 computations")
    wait_until_painted(page)
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "player.png")
    page.locator("button:text-is('◀')").click()
    page.get_by_text(", 1 of ").wait_for()
    page.wait_for_function("(text) => document.querySelector('pre[role=status]').innerText === text", arg=here)
    assert _at(page) == at
    # Zoomed to the end, a step at the beginning brings its time into sight.
    page.evaluate(f"() => {_MODEL}('timeline_x').setv({{start: {at} + 0.02, end: {at} + 0.03}})")
    page.locator("button:text-is('▶')").click()
    page.get_by_text(", 2 of ").wait_for()
    page.wait_for_function(f"{_MODEL}('timeline_x').start < {_MODEL}('timeline_step').data.x0[0]")
    assert not trouble
