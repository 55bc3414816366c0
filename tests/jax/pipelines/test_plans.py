"""Pipelines as plans, before anything runs: their time under the controller's own scheduler, their moves, their errors."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.parallel.pipelines import activations
from pathways_nb.parallel.schedules.actions import actions_of
from pathways_nb.plan.graph import ActionKey
from pathways_nb.plan.plan import Plan
from pathways_nb.session.calls import submit
from pathways_nb.session.tenant_scope import calling
from tests.support.pipelines import actions_planned, actions_run, embed, head, language_model, mlp, mlp_model, squared

SPLIT = [name for name in pw.schedules() if name not in ("dualpipe", "terapipe", "seq1f1b")]


def of_mlps(name: str, devices: int = 2, microbatches: int = 4) -> pw.Pipeline:
    schedule = pw.schedule(name, devices=devices, microbatches=microbatches)
    on = [pw.virtual_slice(1, island=device % 2) for device in range(devices)]
    return pw.pipeline([mlp] * schedule.stages, on=on, schedule=schedule, loss=squared)


@pytest.mark.parametrize("name", SPLIT)
def test_the_scheduler_takes_the_time_of_the_schedule(controller, name: str) -> None:
    """With four places on two islands: islands dispatch ahead, so no place waits for another one's launches."""
    pipe = of_mlps(name, devices=4, microbatches=8)
    params, x, targets = mlp_model(len(pipe.stages), rows=16)
    graph, each = pipe.value_and_grad.graph(params, x, targets), 1 / pipe.schedule.size.chunks
    seconds = {node.name: 0.0 for node in graph.nodes if node.place is not None and node.action is None}
    for action in (action for row in pipe.schedule.rows for cell in row for action in actions_of(cell)):
        seconds[str(action)] = each * (2 if action.operation == "B" else 1)
    found = pw.predict(pipe.value_and_grad, params, x, targets, seconds=seconds)
    assert found == pytest.approx(pipe.schedule.makespan(), rel=1e-9)


def test_the_plan_of_a_pipeline_has_no_overlapped_pairs(controller) -> None:
    """Each action is a launch; with the published pairs the plan of DualPipeV was longer than what runs."""
    published = pw.schedule("dualpipe-v", devices=4, microbatches=8)
    on = [pw.virtual_slice(1, island=device % 2) for device in range(4)]
    pipe = pw.pipeline([mlp] * 8, on=on, schedule=published, loss=squared)
    assert "OVERLAP" in published.text
    assert "OVERLAP" not in pipe.schedule.text
    assert pipe.schedule.makespan() / published.makespan() == pytest.approx(17 / 18)
    assert pipe.schedule.check()
    single = pw.schedule("1f1b", devices=4, microbatches=8)
    assert single.without_pairs() is single


def test_a_move_stands_before_the_action_that_reads_it_and_holds_back_no_other(controller) -> None:
    pipe = of_mlps("zb-v")
    params, x, targets = mlp_model(len(pipe.stages))
    plan = planned(controller, pipe.value_and_grad, (params, x, targets))
    moves = 0
    for order in plan.orders.values():
        for position, index in enumerate(order):
            if plan.steps[index].kind == "move":
                following = (plan.steps[step] for step in order[position:])
                reader = next(step for step in following if step.kind == "launch")
                assert set(plan.steps[index].outputs) <= set(reader.inputs)
                moves += 1
    assert moves == 2 * 4 * 2  # forward and backward, microbatches, two crossings of a V


@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_the_same_pipeline_in_the_simulator(controller, name: str) -> None:
    params, x, targets = mlp_model(4 if name == "zb-v" else 2)
    with pw.attach("sim", chip="tpu_v3", islands=2, devices_per_island=4, values=True):
        pipe = of_mlps(name)
        run = pipe.value_and_grad.run(params, x, targets)
        assert actions_run(run, pipe) == actions_planned(pipe)


def test_less_memory_is_reserved_for_1f1b_than_for_gpipe(controller) -> None:
    peaks = {}
    for name in ("gpipe", "1f1b"):
        pipe = of_mlps(name, microbatches=8)
        found = pipe.value_and_grad.peaks(*mlp_model(2, rows=512))
        peaks[name] = [peak.others for peak in found]
    saved = [a - b for a, b in zip(peaks["gpipe"], peaks["1f1b"], strict=True)]
    assert saved[1] > saved[0] > 0


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "v-min", "dualpipe-v"])
def test_activations_live_as_long_as_the_schedule_claims(controller, name: str) -> None:
    """By the plan's own last uses, and in microbatches by the schedule's own peak where the backward is whole."""
    pipe = of_mlps(name, microbatches=6)
    model = mlp_model(len(pipe.stages), rows=12)
    graph = pipe.value_and_grad.graph(*model)
    claimed, kept = activations.peaks(pipe.schedule, graph), activations.kept_values(graph)
    plan = planned(controller, pipe.value_and_grad, model)
    assert [live_peak(plan, place.serial, kept) for place in pipe.on] == claimed
    if not any(one.input_gradient for one in kept.values()):
        each = sum(graph.values[v].bytes for v in kept[ActionKey(1, 0)].forward) * pipe.schedule.size.chunks
        assert claimed[1] == pytest.approx(each * pipe.schedule.timing().peaks[1], rel=0.35)  # stages keep unlike much


def live_peak(plan: Plan, place: int, kept: dict[ActionKey, activations.KeptValues]) -> int:
    """The most bytes of kept values at a place, from each one's forward pass to its last use in the plan."""
    nodes = {node.id: node for node in plan.graph.nodes}
    live: set[int] = set()
    most = 0
    for step in (plan.steps[index] for index in plan.orders[plan.placements[place].island]):
        action = nodes[step.node].action
        if step.kind == "launch" and step.place == place and action:
            values = set().union(*kept[action])
            live |= {slot for slot in (*step.inputs, *step.outputs) if plan.slots[slot].value in values}
        live -= set(step.last)
        most = max(most, sum(plan.graph.values[plan.slots[slot].value].bytes for slot in live))
    return most


def planned(controller, program: pw.Program, arguments: tuple) -> Plan:
    with calling(controller, program.name):
        return submit.plan_of(controller, submit.traced(controller, program, program.signature(arguments, {})))


def message(match: str) -> str:
    return f"^{re.escape(match)}"


def test_what_does_not_fit_names_both_sides_and_the_fix(controller) -> None:
    on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
    options = {"on": on, "microbatches": 4, "loss": squared}
    with pytest.raises(pw.UsageError, match=message(
        "pipeline: schedule '1f1b' has 2 stages (2 devices with 1 chunk each), but 1 stages were given. Give 2,"
    )):  # fmt: skip
        pw.pipeline([mlp], schedule="1f1b", **options)
    schedule = pw.schedule("gpipe", devices=2, microbatches=4)
    with pytest.raises(pw.UsageError, match=message("pipeline: schedule 'gpipe' has 4 microbatches, but 2 microb")):
        pw.pipeline([mlp] * 2, schedule=schedule, **{**options, "microbatches": 2})
    with pytest.raises(pw.UsageError, match=message("pipeline: schedule 'dualpipe' runs 2 copies of the model")):
        pw.pipeline([mlp] * 2, schedule="dualpipe", **options)
    with pytest.raises(pw.UsageError, match=message("pipeline(schedule='1f1b') needs microbatches=")):
        pw.pipeline([mlp] * 2, on=on, schedule="1f1b", loss=squared)
    pipe = pw.pipeline([mlp] * 2, schedule="1f1b", **options)
    params, x, targets = mlp_model(2)
    with pytest.raises(
        pw.UsageError, match="params must be a list with a tree for each of 2 stages; given is 1 tree\\."
    ):
        pipe.value_and_grad(params[:1], x, targets)
    with pytest.raises(pw.UsageError, match="a batch of 6 rows does not divide into 4 microbatches. Take a batch of 8"):
        pipe.value_and_grad(params, x[:6], targets[:6])
    with pytest.raises(pw.UsageError, match=r"params\[0\]\['up'\] is int32, which has no gradient"):
        pipe.value_and_grad([{**params[0], "up": params[0]["up"].astype(np.int32)}, params[1]], x, targets)


def test_stages_that_do_not_join_name_both_and_what_passes_between_them(controller) -> None:
    def narrow(params, x):
        return mlp(params, x)[:, :3]

    on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
    params, x, targets = mlp_model(2)
    pipe = pw.pipeline([narrow, mlp], on=on, schedule="gpipe", microbatches=2, loss=squared)
    with pytest.raises(TypeError) as caught:
        pipe.value_and_grad(params, x, targets)
    assert "In stage 1 (mlp) of the pipeline: stage 0 (narrow) made float32[4,3]." in "\n".join(caught.value.__notes__)
    pipe = pw.pipeline([mlp, mlp], on=on, schedule="gpipe", microbatches=2, loss=lambda y, t: jnp.mean(y - t, axis=0))
    with pytest.raises(pw.UsageError, match=r"returned float32\[8\], not a scalar loss. Return a mean over the batch"):
        pipe.value_and_grad(params, x, targets)
    for made, form in (({"loss": 0.0}, "a dict of 1 array"), ([0.0], "a list of 1 array"), ("float32", "a str")):
        pipe = pw.pipeline(
            [mlp, mlp], on=on, schedule="gpipe", microbatches=2,
            loss=lambda y, t, made=made: jax.tree.map(lambda leaf: leaf if isinstance(leaf, str) else jnp.mean(y), made),
        )  # fmt: skip
        with pytest.raises(pw.UsageError, match=f"returned {form}, not a scalar loss. Return a mean over the batch"):
            pipe.value_and_grad(params, x, targets)


def test_token_slices_that_do_not_fit(controller) -> None:
    on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
    params, x, targets = language_model()
    options = {"on": on, "schedule": "terapipe", "microbatches": 1, "loss": squared}
    pipe = pw.pipeline([embed, head], token_slices=[6, 5], **options)
    with pytest.raises(pw.UsageError, match=r"token_slices=\[6, 5\] sum to 11 tokens, but the input has 12"):
        pipe.value_and_grad(params, x, targets)
    pipe = pw.pipeline([embed, head], token_slices=[6, 6], **options)
    with pytest.raises(
        pw.UsageError, match=r"targets has shape \(4,\), but the input has 12 tokens. Give a target for"
    ):
        pipe.value_and_grad(params, x, targets[:, 0])
    with pytest.raises(pw.UsageError, match=r"the second dimension of the input is its tokens; its shapes are \[\]"):
        pipe.value_and_grad(params, {}, targets)
    with pytest.raises(pw.UsageError, match=r"no stage \(mlp\) has a parameter 'context', so attention would see only"):
        pw.pipeline([mlp, mlp], token_slices=[6, 6], **options)
    with pytest.raises(pw.UsageError, match="schedule 'terapipe' has 4 token slices, but token_slices= was not given"):
        pw.pipeline([embed, head], **options)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stages": mlp}, r"stages= must be a list; got a function\."),
        ({"on": "left"}, r"on= must be a list; got a str\."),
        ({"on": ["left", "right"]}, r"on\[0\] is a str, not a place\. Give a pw\.virtual_slice"),
        ({"shardings": [pw.P()] * 3}, r"3 shardings were given for 2 stages\. Give a tree of pw\.P for each stage"),
        ({"schedule": "terapipe"}, r"'terapipe' has . token slices, but token_slices= was not given\."),
        ({"token_slices": 3}, r"token_slices= must be a list; got an int\."),
        ({"token_slices": [0, 6, 6]}, r"token_slices\[0\] is 0: every slice needs at least one token, a whole number"),
        ({"token_slices": [6.0, 6.0]}, r"token_slices\[0\] is 6\.0: every slice needs"),
        ({"tied": [(0, "up"), (1, "up")]}, r"tied\[0\] has 0: a path is a stage and keys, such as tied=\[\[\(0, "),
        ({"tied": [["up", "up"]]}, r"tied\[0\] has 'up': a path is a stage and keys"),
        ({"tied": [[(0, "up")]]}, r"tied\[0\] is \[\(0, 'up'\)\]: a group has two or more paths"),
        ({"tied": [[(0, "up"), (9, "up")]]}, r"tied\[0\] has \(9, 'up'\), but the stages are 0 to 1\."),
    ],
)
def test_arguments_of_another_kind(controller, changes, says) -> None:
    given = {"stages": [mlp] * 2, "on": [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)],
             "schedule": "gpipe", "microbatches": 2, "loss": squared} | changes  # fmt: skip
    with pytest.raises(pw.UsageError, match=says):
        pw.pipeline(given.pop("stages"), **given)


def test_more_stages_than_a_schedule_takes_are_told_with_their_chunks(controller) -> None:
    on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
    with pytest.raises(pw.UsageError, match="knows no chunks") as caught:
        pw.pipeline([mlp] * 4, on=on, schedule="gpipe", microbatches=2, loss=squared)
    assert caught.value.__notes__ == ["From pw.pipeline: 4 stages on 2 places make chunks=2."]


def test_losses_and_keys_that_do_not_fit(controller) -> None:
    on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
    params, x, targets = mlp_model(2)
    options = {"on": on, "schedule": "gpipe", "microbatches": 2}
    for has_aux, loss, says in (
        (
            True,
            squared,
            r"squared\(y, targets\) returned float32\[\], but has_aux=True\. Return a pair of the loss and",
        ),
        (
            False,
            lambda y, t: (squared(y, t), y),
            r"returned a tuple of 2 arrays, but has_aux=False\. Return the loss alone",
        ),
    ):
        with pytest.raises(pw.UsageError, match=says):
            pw.pipeline([mlp] * 2, loss=loss, has_aux=has_aux, **options).value_and_grad(params, x, targets)

    def dropping(params, x, key):
        return mlp(params, x) * jax.random.bernoulli(key, 0.9, x.shape)

    pipe = pw.pipeline([mlp, dropping], loss=squared, **options)
    with pytest.raises(pw.UsageError, match=r"stage 1 \(dropping\) has a parameter 'key', but no key was given"):
        pipe.value_and_grad(params, x, targets)
    with pytest.raises(pw.UsageError, match=r"key is int32\[\], not a key\. Pass one, such as value_and_grad"):
        pipe.value_and_grad(params, x, targets, 3)
    with pytest.raises(pw.UsageError, match=r"pipeline: optimizer=0.001 is a float\. Give one of Optax"):
        pipe.step(1e-3)


def test_tied_parameters_that_do_not_fit(controller) -> None:
    on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
    params, x, targets = mlp_model(2)
    for group, text in (
        (
            [(0, "up"), (1, "table")],
            r"tied parameters \[1\]\['table'\] do not exist. There are params\[0\]\['down'\], ",
        ),
        ([(0, "up"), (1, "down")], r"differ in shape or type: \(0, 'up'\): float32\[8,16\], \(1, 'down'\): float32"),
    ):
        pipe = pw.pipeline([mlp] * 2, on=on, schedule="gpipe", microbatches=2, loss=squared, tied=[group])
        with pytest.raises(pw.UsageError, match=text):
            pipe.value_and_grad(params, x, targets)
