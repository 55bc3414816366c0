"""The filter in a real JupyterLab: what is chosen in the browser is read in Python, and what Python sets is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pathways_nb.bench.lab import LabServer
from tests.browser.test_lab import open_notebook, run_all, wait_until_done

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
_CELLS = [
    "%load_ext pathways_nb\nimport pathways_nb as pw",
    "pw.attach('sim', chip='tpu_v3', islands=2, devices_per_island=2)\n"
    "left, right = pw.virtual_slice(2, name='left'), pw.virtual_slice(2, name='right')\n"
    "first, second = pw.work(2e-3, on=left, name='first'), pw.work(1e-3, on=right, name='second')\n"
    "both = pw.program(lambda v: second(first(v)), name='both')",
    "%%pathways --show timeline --run many\nfor i in range(3000): y = both(float(i))\ny.wait();",
    "import time\nwhile pw.runs['many'].view.selection is None: time.sleep(.01)\n"
    "found = pw.runs['many'].view.selection\nprint(found.chosen, '|', *sorted({*found.events['place']}))",
    "selected = pw.runs['many'].view.select(0, 1, kind='compute')\nprint('then', *sorted({*selected.events['kind']}))",
]
_KINDS = """(kind) => {
  for (const one of Object.values(globalThis.pathwaysBokeh)[0].documents) {
    const boxes = one.get_model_by_name("timeline_boxes")
    if (boxes?.data.kind?.length) return boxes.data.kind.every((other) => other === kind)
  }
}"""


def test_what_is_chosen_in_the_browser_is_read_and_set_in_python(chromium: Browser, lab: LabServer) -> None:
    lab.write("filters.ipynb", _CELLS)
    page, trouble = open_notebook(chromium, lab, "filters.ipynb")
    run_all(page)
    page.locator(".pathways-filter").click()
    page.get_by_label("place", exact=True).select_option("right")
    wait_until_done(page)
    page.get_by_text("place right | right").wait_for()
    page.get_by_text("then compute").first.wait_for()
    page.get_by_text("kind compute: ").wait_for()
    page.wait_for_function(_KINDS, arg="compute")
    assert page.get_by_label("place", exact=True).input_value() == ""
    assert page.get_by_label("kind", exact=True).input_value() == "compute"
    assert not trouble
