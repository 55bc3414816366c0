"""What a profile saw inside the launch of a step, joined with the plan by name."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pathways_nb as pw
from pathways_nb.parallel.fsdp.measured import measured
from pathways_nb.trace.launch_ops import Op, Ops

pytestmark = pytest.mark.usefixtures("usual_effort")


def loss(params, x):
    for layer in params:
        x = jnp.tanh(x @ layer["up"]) @ layer["down"]
    return (x**2).mean()


def model(layers: int = 2) -> list[dict[str, np.ndarray]]:
    chance = np.random.default_rng(0)
    return [{"up": chance.normal(size=(16, 32)).astype("f4"), "down": chance.normal(size=(32, 16)).astype("f4")}
            for _ in range(layers)]  # fmt: skip


BATCH = np.ones((8, 16), np.float32)
PLANNED = ["gather 0.up +1", "gather 1.up +1", "regather 1.down +1", "regather 0.down", "reduce 1.down +1",
           "reduce 0.down +1"]  # fmt: skip


def ops(*names: str) -> Ops:
    """Each op has the name of a collective in its source, and lasts a second."""
    return Ops.from_rows(
        Op(f"op.{at}", f"jit(step)/shard_map/{name}/all_gather", "collective", "step", "p", 0, 0, 0, 0, at, at + 1.0)
        for at, name in enumerate(names)
    )


@pytest.fixture
def step(left: pw.VirtualSlice) -> pw.FsdpStep:
    return pw.fsdp(loss, model(), on=left, optimizer=optax.adam(1e-3), batch=(BATCH,))


def test_every_collective_of_the_plan_ran_where_it_was_planned(step: pw.FsdpStep) -> None:
    params, state = step.init(model())
    pw.wait(step(params, state, BATCH))
    with pw.profile() as run:
        pw.wait(step(params, state, BATCH))
    for device in (0, 3):
        found = step.measured(run, device=device)
        assert [one.name for one in found.collectives] == PLANNED
        assert all(one.start is not None and 0.0 <= one.start < one.end for one in found.collectives)
        assert not [said for said in found.differences if "another order" not in said], "threads may change the order"
    held = {name for one in run.memory("category") for name in one.names}
    assert {"parameters", "optimizer", "temporaries"} <= held


def test_merged_moved_and_added_collectives_are_named(step: pw.FsdpStep) -> None:
    as_planned = measured(step.graph(BATCH), ops(*PLANNED), 0.0)
    assert as_planned.differences == ()
    assert "each planned collective ran, in the planned order" in repr(as_planned)
    one, two, again, *rest = PLANNED
    found = measured(step.graph(BATCH), ops(two, one, *rest, "sort"), 0.0)
    assert found.differences[0] == f"{again} has no op: the compiler merged it with another or removed it"
    assert found.differences[1] == f"{one} ran in another order than planned"
    assert found.differences[2:] == ("op.5 (1 s) is not in the plan",)
    assert found.collectives[1].start == 0.0


def test_a_run_without_this_step_is_refused(step: pw.FsdpStep) -> None:
    with pw.record() as run:
        pw.wait(step.value_and_grad(step.init(model())[0], BATCH))
    with pytest.raises(
        pw.UsageError, match=r"no ops of this step on device 0: it was not profiled\. Call the step once"
    ):
        step.measured(run)
    run.ops = ops("gather 0.up +1")
    with pytest.raises(pw.UsageError, match=r"it has no launch of loss step or loss value_and_grad"):
        step.measured(run)
