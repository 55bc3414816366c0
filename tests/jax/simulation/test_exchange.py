"""An exchange between simulated islands takes what a closed form says, and lies under the backward pass."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.cost.hardware.host_costs import HOST
from pathways_nb.cost.model import CostModel
from tests.support.simulated import COSTS

LAYERS, COMPUTE, BYTES = 6, 1.0, 4 * 10**9
X = jax.ShapeDtypeStruct((), jnp.float32)


def exchanged(islands: int, transfer: float, **options: Any) -> tuple[pw.Run, float]:
    """A step of a forward and six backward nodes of a second; each part takes ``transfer`` seconds over a host's link.

    Returns:
        The run, and the seconds of the last sum.
    """
    network = pw.chip("tpu_v3").network.replace(host_bw=BYTES / transfer, rtt=0.0, efficiency=1.0)
    free = HOST.replace(**dict.fromkeys(COSTS, 0.0))
    model = CostModel.of(pw.chip("tpu_v3").replace(hbm_bw=1e18), network, free)
    with pw.attach("sim", chip=model, islands=islands, devices_per_island=4, devices_per_host=4, hbm=1e15):
        places = [pw.virtual_slice(4, island=island) for island in range(islands)]
        forward = [pw.work(COMPUTE, on=place, name="forward") for place in places]
        backward = [pw.work(COMPUTE, on=place, output_bytes=BYTES, name="backward") for place in places]

        def step(x: Any) -> Any:
            trees = []
            for first, layer in zip(forward, backward, strict=True):
                made = [layer(first(x))]
                while len(made) < LAYERS:
                    made.append(layer(made[-1]))
                trees.append(made)
            return pw.all_reduce(trees, across=places, bucket_mb=BYTES / 1e6, **options)

        run = pw.program(step, name="step").run(X)
    events = run.events
    return run, float(np.ptp(np.stack([events["start"], events["end"]])[:, events.is_("name", "all_reduce")][:, -1]))


PASSES = COMPUTE * (1 + LAYERS)


def makespan_of(run: pw.Run) -> float:
    events = run.events.of_kind("compute", "transfer")
    return float(events["end"].max() - events["start"].min())


@pytest.mark.parametrize("transfer", [0.25, 0.5, 1.0, 1.5, 2.0])
def test_two_islands_take_the_backward_pass_and_what_cannot_lie_under_it(transfer: float) -> None:
    """The link is the bottleneck from the first layer on, or else only the last layer's transfer is exposed."""
    run, add = exchanged(2, transfer)
    arrived = max(PASSES + transfer, 2 * COMPUTE + LAYERS * transfer)
    assert makespan_of(run) == pytest.approx(arrived + add, rel=1e-6)


@pytest.mark.parametrize("islands", [2, 3, 4])
@pytest.mark.parametrize("transfer", [0.1, 2.0])
def test_no_launch_of_a_backward_pass_waits_for_the_exchange(islands: int, transfer: float) -> None:
    """With more islands, each receives all other parts over its link: no order of these is better than one by one."""
    run, add = exchanged(islands, transfer)
    passes = run.events.select(run.events.is_("name", "backward", "forward"))
    assert passes["end"].max() == pytest.approx(passes["start"].min() + PASSES)
    parts = (islands - 1) * transfer
    assert makespan_of(run) >= max(PASSES + parts, 2 * COMPUTE + LAYERS * parts) + add - 1e-6
    assert makespan_of(run) <= 2 * COMPUTE + max(PASSES, LAYERS * islands * parts) + add


@pytest.mark.parametrize("transfer", [0.25, 0.5, 1.0])
def test_all_but_the_last_part_lies_under_computation(transfer: float) -> None:
    run, _ = exchanged(2, transfer)
    found = run.exchange()
    assert found.seconds == pytest.approx(2 * LAYERS * transfer, rel=1e-3)
    assert found.hidden_share == pytest.approx((LAYERS - 1) / LAYERS, rel=1e-2)


def test_sums_start_as_their_parts_arrive_in_the_order_of_the_backward_pass() -> None:
    run, _ = exchanged(2, 2.0)
    events = run.events
    for island in (0, 1):
        sums = events.select(events.is_("name", "all_reduce") & (events["island"] == island))
        moves = events.select(events.is_("kind", "transfer") & (events["island"] == island))
        np.testing.assert_allclose(np.sort(sums["start"]), np.maximum(np.sort(moves["end"]), PASSES), rtol=1e-6)
