"""The explorer of sharded steps in a real JupyterLab: buckets are typed, and band, lanes, memory and words follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pathways_nb.bench.lab import LabServer
from tests.browser.test_lab import SHOTS, open_notebook, run_all, wait_until_done, wait_until_painted
from tests.browser.test_lab_schedules import field

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
CELLS = [
    """\
import jax, jax.numpy as jnp, pathways_nb as pw
from pathways_nb.examples import llama3
shape = llama3.Shape(layers=4, features=1024, hidden=4096, heads=8, shared_heads=2, vocabulary=8192)
tokens = jax.ShapeDtypeStruct((16, 2048), jnp.int32)
step = pw.fsdp(llama3.loss(shape), llama3.params(shape), on=pw.virtual_slice(16), batch=(tokens, tokens))""",
    'explorer = pw.explore_fsdp(step, chip="gpu_h100_sxm", bandwidth=20e9, latency=40e-6)\nexplorer',
]
_HELPERS = """
window.model = (name) => Object.values(globalThis.pathwaysBokeh)[0].documents.at(-1)?.get_model_by_name(name)
window.says = (words) => model("step_headings")?.data.text.join(" ").includes(words)
"""


def test_typed_buckets_change_the_band_the_lanes_and_the_words(chromium: Browser, lab: LabServer) -> None:
    lab.write("plans.ipynb", CELLS)
    page, trouble = open_notebook(chromium, lab, "plans.ipynb")
    page.evaluate(f"() => {{ {_HELPERS} }}")
    run_all(page)
    page.wait_for_function("globalThis.pathwaysBokeh && model('step_band')?.data.left?.length")
    wait_until_done(page)
    wait_until_painted(page)
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "fsdp-plan.png")
    assert page.evaluate("says('per block: 7 buckets, prefetch 1')")
    buckets = page.locator("textarea").last
    assert buckets.input_value() == "embedding\nhead\nlayers.*\nnorm"
    lanes = page.evaluate("model('step_boxes').data.left.length")

    buckets.fill("embedding; layers.0-1; layers.*; norm, head")
    buckets.blur()
    page.wait_for_function("says('own: 5 buckets')")
    assert field(page, "plan").input_value() == "own"
    assert page.evaluate("model('step_boxes').data.left.length") != lanes
    page.locator("input[type=checkbox]").last.check()
    page.wait_for_function("model('step_lanes_ticks').ticks.length === 3")
    field(page, "devices").fill("64")
    field(page, "devices").press("Enter")
    page.wait_for_function("says('zero3 on 64 devices')")
    buckets.fill("layers.*")
    buckets.blur()
    page.wait_for_function("says('parameter embedding and 2 more of the model is in no bucket of the forward plan')")
    wait_until_painted(page)
    page.screenshot(path=SHOTS / "fsdp-plan-refused.png")
    assert page.evaluate("model('step_band').data.left.length") == 0
    buckets.fill("embedding, head, layers, norm")
    buckets.blur()
    page.wait_for_function("says('own: 1 bucket') && model('step_lanes').visible && model('step_held').visible")
    wait_until_painted(page)
    page.screenshot(path=SHOTS / "fsdp-plan-mended.png")
    assert trouble == []
