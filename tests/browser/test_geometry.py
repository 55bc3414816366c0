"""Nothing in a figure covers anything, on narrow pages and on wide ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pathways_nb.notebook.demo_page import FIGURE
from pathways_nb.trace.record import STORED, Events
from pathways_widgets import figure_of, thumbnails
from tests.core.widgets.fake_run import FakeRun, fake_run, memory_run, training_step, unrolled
from tests.core.widgets.test_compared_timeline import compared
from tests.core.widgets.test_folded_time import COMPILED, run_of
from tests.core.widgets.test_ghost_outlines import again
from tests.core.widgets.test_happened_tags import eventful
from tests.core.widgets.test_timeline_clients import shared
from tests.support.executed_notebooks import NAMES, executed
from tests.support.page_geometry import what_covers

pytestmark = pytest.mark.browser
RUNS: dict[str, Callable[[], tuple[FakeRun, tuple[str, ...]]]] = {
    "a step": lambda: (fake_run(), ("graph", "timeline", "memory")),
    "its critical path": lambda: (fake_run(), ("graph", "critical")),
    "clients": lambda: (shared(), ("timeline", "memory")),
    "memory": lambda: (memory_run(), ("timeline", "categories")),
    "a folded beginning": lambda: (run_of(*COMPILED, ("enqueue", 0.7, 0.71), ("compute", 0.71, 1.0)), ("timeline",)),
    "two runs": lambda: (compared(), ("timeline", "memory")),
    "run again": lambda: (again(), ("graph", "timeline")),
    "what happened": lambda: (eventful(), ("timeline", "memory")),
    "long names": lambda: (long_names(), ("graph", "timeline")),
}


def long_names() -> FakeRun:
    """A run of several programs, of which some have long names."""
    run = fake_run()
    run.programs = [training_step("a_training_step_of_a_model_with_a_long_name"), unrolled(), training_step("wide WWW")]
    return run


def test_a_name_without_a_space_does_not_make_the_page_wider(opened: Callable[..., Any]) -> None:
    run, name = shared(), "a_client_" * 40
    run.name = name
    labels = [replace(label, client=name + label.client, program=name) for label in run.recorded.labels]
    run.recorded = Events(labels, {one: run.recorded.stored(one) for one in STORED}, run.recorded["id"])
    tab = opened(figure_of(run, ("timeline", "memory")))
    for words in ("details", "as a table"):
        tab.get_by_text(words).first.click()
    tab.get_by_role("columnheader", name="program").first.wait_for()
    assert tab.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.parametrize("name", RUNS)
def test_nothing_covers_anything(opened: Callable[..., Any], name: str) -> None:
    run, show = RUNS[name]()
    assert what_covers(opened(figure_of(run, show))) == []


def test_nothing_covers_anything_in_small_timelines(opened: Callable[..., Any]) -> None:
    runs = {
        f"dispatch={how}, latency_ms={ms}": (fake_run().events, (4, 4))
        for how in ("parallel", "sequential")
        for ms in (1, 5)
    }
    tab = opened(thumbnails(runs, "dispatch=parallel, latency_ms=1 is fastest").json_item_with_data())
    assert tab.inner_text(".pathways-headline") == "dispatch=parallel, latency_ms=1 is fastest"
    assert what_covers(tab) == []
    seen = "() => Bokeh.documents[0].get_model_by_name('thumbnails').inner_width"
    tab.set_viewport_size({"width": 600, "height": 900})
    tab.wait_for_function(f"() => ({seen})() < 600")
    assert tab.evaluate(seen) > 250, "names leave room for what they name"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_covers_anything_in_the_figures_of_the_course(opened: Callable[..., Any], name: str) -> None:
    outputs = [output for cell in executed(name).cells for output in cell.get("outputs", ())]
    figures = [dict(output.data[FIGURE]) for output in outputs if FIGURE in output.get("data", {})]
    assert figures, "or nothing is tested"
    assert what_covers(opened(*figures)) == []
