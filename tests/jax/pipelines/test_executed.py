"""Pipelines on real devices: gradients of the whole model, and launches in the schedule's order."""

from __future__ import annotations

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from tests.support.closeness import close, error
from tests.support.pipelines import (
    actions_planned,
    actions_run,
    attend,
    cross_entropy,
    embed,
    head,
    language_model,
    mlp,
    mlp_model,
    squared,
)

ONE_COPY = [name for name in pw.schedules() if name not in ("dualpipe", "terapipe", "seq1f1b")]


def two_places() -> list[pw.VirtualSlice]:
    return [pw.virtual_slice(2, island=0, name="left"), pw.virtual_slice(2, island=1, name="right")]


def of_mlps(name: str, on: list[pw.VirtualSlice] | None = None) -> pw.Pipeline:
    schedule = pw.schedule(name, devices=2, microbatches=4)
    return pw.pipeline([mlp] * schedule.stages, on=on or two_places(), schedule=schedule, loss=squared)


@pytest.mark.parametrize("name", ONE_COPY)
def test_gradients_and_order_of_every_schedule(controller, name: str) -> None:
    pipe = of_mlps(name)
    params, x, targets = mlp_model(len(pipe.stages))
    run = pipe.value_and_grad.run(params, x, targets)
    value, gradients = run.outputs
    expected, exact = jax.jit(jax.value_and_grad(pipe.composed))(params, x, targets)
    close((value, gradients), (expected, exact))
    assert actions_run(run, pipe) == actions_planned(pipe)


def test_a_part_is_compiled_once_for_all_microbatches_and_schedules(controller) -> None:
    params, x, targets = mlp_model(2)
    on, compiled = [pw.virtual_slice(3, island=0), pw.virtual_slice(3, island=1)], []
    for name in ("1f1b", "gpipe", "zb-h1"):
        with pw.record() as run:
            pw.wait(of_mlps(name, on).value_and_grad(params, x, targets))
        compiled.append(sorted(one for one in run.events.of_kind("compile")["name"].tolist() if one[0].isdigit()))
    assert compiled == [["0B0", "0F0", "1B0", "1F0"], [], ["0I0", "0W0", "1I0", "1W0"]]


def test_the_order_holds_while_another_tenant_competes(controller) -> None:
    pipe = of_mlps("zb-v")
    params, x, targets = mlp_model(4)
    busy = pw.program(pw.work(2e-3, on=pw.virtual_slice(2, island=1)), name="busy")
    pw.wait((busy(), pipe.value_and_grad(params, x, targets)))
    other = pw.client("other")
    with pw.record() as run:
        found = []
        for _ in range(3):
            with other.acting():
                found += [busy() for _ in range(4)]
            found.append(pipe.value_and_grad(params, x, targets))
        pw.wait(found)
    # By call: while clients compete, an island that would stand still may begin the next call of a client.
    calls = np.unique(run.events["run"][run.events["client"] != "other"])
    rows = [actions_run(run, pipe, call) for call in calls if call >= 0]
    assert rows == [actions_planned(pipe)] * 3


def test_each_action_says_what_it_is(controller) -> None:
    pipe = of_mlps("1f1b")
    params, x, targets = mlp_model(2)
    graph = pipe.value_and_grad.graph(params, x, targets)
    actions = {node.name: node.action for node in graph.nodes if node.action}
    assert actions["1B3"] == (1, 3, -1)
    assert len(actions) == 2 * 2 * 4
    run = pipe.value_and_grad.run(params, x, targets)
    event = run.events.select(run.events.is_("name", "0F2") & run.events.is_("kind", "compute"))
    assert (event["stage"].tolist(), event["microbatch"].tolist()) == ([0], [2])


def test_fusing_leaves_actions_alone(controller) -> None:
    pipe = of_mlps("1f1b")
    params, x, targets = mlp_model(2)
    fused = pw.program(lambda *args: pipe.value_and_grad(*args), name="fused", fuse=True)
    run = fused.run(params, x, targets)
    assert actions_run(run, pipe) == actions_planned(pipe)


@pytest.mark.parametrize(
    ("name", "slices", "microbatches"),
    [("1f1b", None, 2), ("terapipe", [5, 4, 3], 2), ("seq1f1b", [5, 4, 3], 2)],
)
def test_token_slices_have_the_gradients_of_whole_sequences(controller, name: str, slices, microbatches: int) -> None:
    params, x, targets = language_model()
    on = [pw.virtual_slice(2, island=0), pw.virtual_slice(1, island=1)]
    pipe = pw.pipeline(
        [embed, head], on=on, schedule=name, microbatches=microbatches, loss=cross_entropy, token_slices=slices
    )
    run = pipe.value_and_grad.run(params, x, targets)
    expected, exact = jax.jit(jax.value_and_grad(pipe.composed))(params, x, targets)
    close(run.outputs, (expected, exact))
    assert actions_run(run, pipe) == actions_planned(pipe)


@pytest.mark.parametrize(("name", "slices"), [("terapipe", [4, 2, 4, 2]), ("seq1f1b", [6, 6])])
def test_with_the_whole_store_each_length_is_compiled_once(controller, name: str, slices) -> None:
    params, x, targets = language_model()
    on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
    pipe = pw.pipeline([embed, head], on=on, schedule=name, microbatches=2, loss=cross_entropy,
                       token_slices=slices, whole_store=True)  # fmt: skip
    run = pipe.value_and_grad.run(params, x, targets)
    compiled = Counter(one[:2] for one in run.events.of_kind("compile")["name"].tolist() if one[:1].isdigit())
    assert compiled == dict.fromkeys(("0F", "1F", "0B", "1B"), len(set(slices)))
    expected, exact = jax.jit(jax.value_and_grad(pipe.composed))(params, x, targets)
    close(run.outputs, (expected, exact))
    assert actions_run(run, pipe) == actions_planned(pipe)


def checkpointed(params, h, context):
    """Attention that appends inside ``jax.checkpoint``, once with its context closed over and once as an argument."""
    h = jax.checkpoint(lambda weights, h: attend(weights, h, context))(params["block"], h)
    saved = jax.checkpoint_policies.dots_saveable
    return jax.checkpoint(attend, policy=saved)(params["block"], h, context) @ params["head"]


def jitted(params, h, context):
    return jax.jit(attend)(params["block"], h, context) @ params["head"]


def scanned(params, h, context):
    """Two layers with the same form of weights: the buffers of both are stacked."""
    layers = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), params["block"])
    layer = jax.checkpoint(lambda h, weights: (attend(weights, h, context), None))
    return jax.lax.scan(layer, h, layers)[0] @ params["head"]


@pytest.mark.parametrize(("last", "whole"), [(checkpointed, False), (jitted, True), (scanned, False)])
def test_keys_and_values_are_appended_at_any_depth(controller, last, whole: bool) -> None:
    params, x, targets = language_model()
    on = [pw.virtual_slice(1, island=0), pw.virtual_slice(2, island=1)]
    pipe = pw.pipeline([embed, last], on=on, schedule="seq1f1b", microbatches=2, loss=cross_entropy,
                       token_slices=[8, 4], whole_store=whole, data_sharding=pw.P("x"))  # fmt: skip
    value, gradients = pipe.value_and_grad(params, x, targets)
    expected, exact = jax.jit(jax.value_and_grad(pipe.composed))(params, x, targets)
    close((value, gradients), (expected, exact))


def test_appending_in_a_branch_is_refused(controller) -> None:
    params, x, targets = language_model()

    def branching(params, h, context):
        return jax.lax.cond(h[0, 0, 0] > 0, lambda: attend(params["block"], h, context), lambda: h) @ params["head"]

    on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
    pipe = pw.pipeline([embed, branching], on=on, schedule="terapipe", microbatches=1, loss=cross_entropy,
                       token_slices=[8, 4])  # fmt: skip
    with pytest.raises(pw.UsageError, match="context.append is called inside 'cond', through which keys and values"):
        pipe.value_and_grad(params, x, targets)


def test_a_prefix_without_gradient_is_found_out(controller) -> None:
    """The loss would not change: only gradients show that those of later tokens reach earlier keys and values."""
    params, x, targets = language_model()

    def stopped(params, h, context):
        return attend(params["block"], h, context, stopped=True) @ params["head"]

    on = [pw.virtual_slice(2, island=0), pw.virtual_slice(1, island=1)]
    options = {"on": on, "schedule": "terapipe", "microbatches": 2, "loss": cross_entropy, "token_slices": [5, 4, 3]}
    value, gradients = pw.pipeline([embed, stopped], **options).value_and_grad(params, x, targets)
    expected, right = jax.jit(jax.value_and_grad(pw.pipeline([embed, head], **options).composed))(params, x, targets)
    close(value, expected)
    assert error(gradients, right) > 0.1


def test_in_double_precision_gradients_are_those_of_the_whole_model(fresh_python) -> None:
    """In a process of its own: the option is for the whole process."""
    done = fresh_python(
        """
        import jax
        jax.config.update("jax_enable_x64", True)
        import numpy as np, pathways_nb as pw
        from tests.support.closeness import error
        from tests.support.pipelines import cross_entropy, embed, head, language_model, mlp, mlp_model, squared

        pw.attach("cpu", islands=2, devices_per_island=2)
        on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
        for pipe, model in (
            (pw.pipeline([mlp] * 2, on=on, schedule="zb-h1", microbatches=4, loss=squared), mlp_model(2)),
            (pw.pipeline([embed, head], on=on, schedule="seq1f1b", microbatches=2, loss=cross_entropy,
                         token_slices=[1, 11]), language_model()),
        ):
            params, x, targets = jax.tree.map(lambda a: a.astype(float) if a.dtype == np.float32 else a, model)
            value, gradients = pipe.value_and_grad(params, x, targets)
            expected, exact = jax.jit(jax.value_and_grad(pipe.composed))(params, x, targets)
            assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {np.dtype(float)}
            assert abs(float(value) - float(expected)) < 1e-12
            print(error(gradients, exact))
        """
    )
    assert done.returncode == 0, done.stderr
    assert max(map(float, done.stdout.split())) < 1e-12
