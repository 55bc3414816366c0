"""A trace that another tool wrote, as a person sees it: a lane for each stream, and what hovering says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pathways_nb as pw
from pathways_widgets import figure_of
from pathways_widgets.timeline.lanes import Lanes, streams_of
from tests.browser.test_page_views import tip_at
from tests.core.runtime.test_torch_traces import events
from tests.support.kineto_trace import write


@pytest.mark.browser
@pytest.mark.parametrize("width", [1000, 500])
def test_streams_are_lanes_and_boxes_say_what_they_are(opened: Callable[..., Any], tmp_path: Path, width: int) -> None:
    run = pw.load(write(tmp_path / "rank5.json.gz", events()))
    tab = opened(figure_of(run, ("timeline",)), width=width, height=700)
    named = tab.evaluate("() => [...Bokeh.documents[0].get_model_by_name('timeline_labels').data.text]")
    assert {"host", "island 0 · stream 7", "stream 20", "busy", "transfers"} == set(named)
    lanes = Lanes((1,), streams=streams_of(run.events.labels, (1,)))
    reduce = sum(lanes.band("collective", 0, 0, 1, "stream 20")) / 2
    said = tip_at(tab, "timeline", 1250e-6, reduce)
    assert "ncclDevKernel_AllReduce_Sum_f32_RING_LL" in said
    assert "GPU 0, stream 20 · island 0, dev 0" in said
    assert "process group 0, ranks [0, 1]; Float; allreduce" in said
    copy = sum(lanes.band("transfer", 0, 0, 1, "stream 7")) / 2
    assert "Memcpy HtoD (Pageable -> Device)" in tip_at(tab, "timeline", 30e-6, copy)
    tab.get_by_role("button", name="collective").wait_for()
