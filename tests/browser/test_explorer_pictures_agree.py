"""What Chromium shows of explorers after live changes is what their still pictures have; see ``test_pictures_agree``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import pathways_nb as pw
from pathways_nb.examples import llama3
from pathways_widgets.drawing.still_frame import LABELS
from pathways_widgets.drawing.style import current
from pathways_widgets.explorers import step_view, token_view
from pathways_widgets.explorers.plots import WIDTH, Plot
from tests.browser.test_pictures_agree import assert_agree, assert_in_still
from tests.support.live_page import LivePage

pytestmark = pytest.mark.browser
MARGIN = 1.5 * current().font


def follow(
    opened: Callable[..., Any], explorer: Any, plots: Sequence[Plot], width: float, changes: Sequence[Mapping[str, Any]]
) -> None:
    """Hold every plot of an explorer's figure against its still picture, after each of some changes.

    Args:
        opened: opens a page.
        explorer: the explorer.
        plots: the plots of its picture; of an error there is only the first.
        width: pixels of the still picture in which text has the room that it has in the live one.
        changes: traits with their values.
    """
    figure = explorer.make_figure()
    live = LivePage(opened(LivePage.PLACE), figure)
    for change in changes:
        for name, value in change.items():
            setattr(explorer, name, value)
        figure.draw(*explorer.drawn)
        live.update()
        shown = plots[:1] if explorer.picture.error else plots
        parts = [assert_agree(live.tab, one.name, one.marks, figure.drawing.sources) for one in shown]
        for part in parts:
            assert_in_still(part, explorer.scene(width))


def test_token_slices(opened: Callable[..., Any]) -> None:
    explorer = pw.terapipe.explore(length=512, stages=4, granularity=16)
    changes: list[dict[str, Any]] = [{}, {"batch": 3, "stages": 8}, {"length": 500}, {"length": 256, "batch": 1}]
    plots = (token_view.SLICES, token_view.SURFACE, token_view.BARS)
    follow(opened, explorer, plots, WIDTH + 2 * MARGIN, changes)


def test_a_sharded_step(opened: Callable[..., Any]) -> None:
    shape = llama3.Shape(layers=2, features=256, hidden=512, heads=4, shared_heads=2, vocabulary=1024)
    tokens = jax.ShapeDtypeStruct((16, 128), jnp.int32)
    step = pw.fsdp(llama3.loss(shape), llama3.params(shape), on=pw.virtual_slice(16), batch=(tokens, tokens))
    explorer = pw.explore_fsdp(step, chip="gpu_h100_sxm", bandwidth=20e9, latency=40e-6)
    peak = explorer.timeline.memory.peak
    changes: list[dict[str, Any]] = [
        {},
        {"wrapping": "per parameter", "memory": 1.2 * peak},
        {"buckets": "layers.*"},
        {"wrapping": "greedy", "three_streams": True},
        {"mode": "ddp"},
    ]
    plots = (step_view.BUCKETS, step_view.LANES, step_view.MEMORY)
    follow(opened, explorer, plots, WIDTH + LABELS + MARGIN, changes)
