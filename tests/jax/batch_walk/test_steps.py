"""Steps and pipelines against the whole batch: means over a mask, auxiliary outputs, what is not trained, numbers."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from tests.jax.batch_walk import losses
from tests.jax.batch_walk.losses import CLASSES, FEATURES, ROWS, UNKNOWN, UNKNOWN_BUT_RIGHT, data, each, logits, seen
from tests.jax.batch_walk.random_steps import random_step
from tests.support.closeness import close
from tests.support.pipelines import language_model, mlp, mlp_model, normal, random


@pytest.mark.parametrize("seed", range(8))
def test_a_random_step_agrees_with_the_whole_batch_or_is_refused(controller: pw.Controller, seed: int) -> None:
    outcome = random_step(seed)
    assert outcome.ended == ("refused" if outcome.wrong else "agreed"), outcome


def masked(w: Any, x: Any, y: Any) -> Any:
    return pw.mean((each(w, x, y) * seen(y)).sum(), seen(y).sum()) + 0.1 * jnp.sum(w**2)


def halves(y: Any, share: int = 2) -> Any:
    """Labels whose first rows are all masked."""
    y = y.copy()
    y[: ROWS // share] = 0
    return y


@pytest.mark.parametrize("mode", ["ddp", "zero3"])
def test_a_part_without_any_unmasked_row_counts_nothing(controller: pw.Controller, mode: str) -> None:
    w, x, y = data()
    step = pw.fsdp(masked, w, on=pw.virtual_slice(4), mode=mode, accumulate=2)
    value, gradients = step.value_and_grad(step.init(w), x, halves(y))
    close((value, step.whole(gradients)), jax.value_and_grad(masked)(w, x, halves(y)))
    assert step.checked == "checked by structure: the loss is a mean over what is split"


def test_a_mask_that_leaves_nothing_is_an_error_of_the_value(controller: pw.Controller) -> None:
    w, x, y = data()
    step = pw.fsdp(masked, w, on=pw.virtual_slice(2))
    kept = step.init(w)
    value, _ = step.value_and_grad(kept, x, np.zeros_like(y))
    with pytest.raises(pw.NodeError, match="pw.mean: the count of mean 0 of the loss is 0 in the whole batch"):
        value.result()
    close(step.value_and_grad(kept, x, y)[0], masked(w, x, y))


def test_a_mean_over_a_mask_in_a_pipeline_and_in_plain_jax(controller: pw.Controller) -> None:
    params, x, _ = mlp_model(2)
    mask = np.array([0, 0, 1, 1, 1, 0, 1, 1], np.float32)

    def loss(h: Any, targets: Any) -> Any:
        wanted, mask = targets
        return pw.mean((((h - wanted) ** 2).mean(-1) * mask).sum(), mask.sum())

    on = [pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)]
    for options in ({}, {"fsdp": "zero3"}, {"data_sharding": pw.P("x")}):
        pipe = pw.pipeline([mlp] * 2, on=on, schedule="1f1b", microbatches=2, loss=loss, **options)
        found = pipe.value_and_grad(params, x, (x[::-1].copy(), mask))
        close(found, jax.value_and_grad(pipe.composed)(params, x, (x[::-1].copy(), mask)))


def with_metrics(w: Any, x: Any, y: Any) -> Any:
    right = jnp.argmax(logits(w, x), -1) == y
    about = {
        "logits": logits(w, x), "right": right, "accuracy": right.astype(jnp.float32).mean(),
        "count": right.sum(), "largest": logits(w, x).max(), "any": right.any(),
        "smallest": logits(w, x).min(),
        "seen": pw.mean((right * seen(y)).sum(), seen(y).sum()), "norm": jnp.sqrt(jnp.sum(w**2)),
    }  # fmt: skip
    return each(w, x, y).mean(), about


JOINED = {"count": "sum", "largest": "max", "any": "max", "smallest": "min"}
DECLARED = {"largest": "max", "smallest": "min"}


@pytest.mark.parametrize(("mode", "accumulate"), [("zero3", 1), ("ddp", 2)])
def test_auxiliary_outputs_of_a_step_are_those_of_the_whole_batch(
    controller: pw.Controller, mode: str, accumulate: int
) -> None:
    w, x, y = data()
    step = pw.fsdp(with_metrics, w, on=pw.virtual_slice(4), mode=mode, accumulate=accumulate, has_aux=True, aux=JOINED)
    (value, about), _ = step.value_and_grad(step.init(w), x, y)
    close((value, about), with_metrics(w, x, y))
    assert {name: leaf.dtype for name, leaf in about.items()} == {
        name: leaf.dtype for name, leaf in with_metrics(w, x, y)[1].items()
    }


@pytest.mark.parametrize("fsdp", [None, "zero3"])
def test_auxiliary_outputs_of_a_pipeline_are_those_of_the_whole_batch(controller: pw.Controller, fsdp: str) -> None:
    _, x, y = data()
    params = [normal(random(), FEATURES, FEATURES) for _ in range(2)]

    def loss(h: Any, targets: Any) -> Any:
        return with_metrics(jnp.eye(FEATURES)[:, :CLASSES], h, targets)

    on = [pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)]
    pipe = pw.pipeline([lambda w, x: x + jnp.tanh(x @ w)] * 2, on=on, schedule="1f1b", microbatches=4, loss=loss,
                       has_aux=True, aux=JOINED, fsdp=fsdp)  # fmt: skip
    found, _ = pipe.value_and_grad(params, x, y)
    close(found, pipe.composed(params, x, y))


def with_cotangents(change: Any) -> Any:
    """The identity, whose cotangents are changed."""
    passed = jax.custom_vjp(lambda v: v)
    passed.defvjp(lambda v: (v, None), lambda _, g: (change(g),))
    return passed


@pytest.mark.parametrize("change", [jnp.sign, lambda g: jnp.clip(g, -0.05, 0.05)])
def test_gradients_that_are_not_linear_in_the_loss_are_compared_as_a_step_makes_them(
    controller: pw.Controller, change: Any
) -> None:
    """All parts are alike, so that only a step, where each is a part of the mean, has other gradients."""
    w, x, y = data()
    x, y, passed = np.tile(x[:2], (ROWS // 2, 1)), np.tile(y[:2], ROWS // 2), with_cotangents(change)
    step = pw.fsdp(lambda w, x, y: each(passed(w), x, y).mean(), w, on=pw.virtual_slice(2))
    with pytest.raises(pw.UsageError, match="gradients of its parts together differ by"):
        step.value_and_grad(step.init(w), x, y)


def test_cotangents_that_are_clipped_in_each_row_are_right(controller: pw.Controller) -> None:
    passed = with_cotangents(lambda g: jnp.clip(g, -0.01, 0.01))

    def loss(w: Any, x: Any, y: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(passed(x @ w)), y[:, None], 1).mean()

    w, x, y = data()
    step = pw.fsdp(loss, w, on=pw.virtual_slice(2))
    value, gradients = step.value_and_grad(step.init(w), x, y)
    close((value, step.whole(gradients)), jax.value_and_grad(loss)(w, x, y))


@pytest.mark.parametrize(
    "of_rows",
    [
        lambda w, x, y: logits(w, x) - logits(w, x).mean(0),
        lambda w, x, y: each(w, x, y) / len(x),
        lambda w, x, y: x[:, 0] > 1 / len(x),
    ],
)
def test_rows_that_depend_on_other_rows_are_no_auxiliary_output(controller: pw.Controller, of_rows: Any) -> None:
    w, x, y = data()
    step = pw.fsdp(lambda w, x, y: (each(w, x, y).mean(), {"c": of_rows(w, x, y)}), w, on=pw.virtual_slice(2),
                   has_aux=True)  # fmt: skip
    with pytest.raises(pw.UsageError, match="auxiliary output c has the shape .* or depend on other rows or on how ma"):
        step.value_and_grad(step.init(w), x, y)


@pytest.mark.parametrize(
    "of_tokens",
    [
        lambda e: jnp.cumsum(e, 1),
        lambda e: e / e.shape[1],
        lambda e: jax.nn.softmax(e, 1),
        lambda e: e[:, ::-1],
        lambda e: e * jnp.arange(e.shape[1]),
    ],
)
def test_tokens_that_depend_on_other_tokens_are_no_auxiliary_output(controller: pw.Controller, of_tokens: Any) -> None:
    from tests.support.pipelines import cross_entropy, embed, head

    def loss(y: Any, targets: Any) -> Any:
        return cross_entropy(y, targets), {"c": of_tokens(jnp.mean(y**2, -1))}

    params, x, targets = language_model()
    on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
    pipe = pw.pipeline([embed, head], on=on, schedule="terapipe", microbatches=2, loss=loss, token_slices=[6, 4, 2],
                       has_aux=True)  # fmt: skip
    with pytest.raises(pw.UsageError, match="auxiliary output c has the shape .* what belongs to a token depends on"):
        pipe.value_and_grad(params, x.astype(np.int32), targets.astype(np.int32))


def test_auxiliary_outputs_of_token_slices_are_put_together(controller: pw.Controller) -> None:
    from tests.support.pipelines import cross_entropy, embed, head

    def loss(y: Any, targets: Any) -> Any:
        right = jnp.argmax(y, -1) == targets
        return cross_entropy(y, targets), {"right": right, "accuracy": right.astype(jnp.float32).mean()}

    params, x, targets = language_model()
    x, targets = x.astype(np.int32), targets.astype(np.int32)
    on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
    pipe = pw.pipeline([embed, head], on=on, schedule="terapipe", microbatches=2, loss=loss, token_slices=[6, 4, 2],
                       has_aux=True)  # fmt: skip
    found, _ = pipe.value_and_grad(params, x, targets)
    close(found, pipe.composed(params, x, targets))


@pytest.mark.parametrize(
    ("name", "aux", "says"),
    [
        ("count", DECLARED | {"any": "max"}, r"this auxiliary output .* not known: count, int32\[\]\. Say it: aux="),
        ("any", DECLARED | {"count": "sum"}, r"is not known: any, bool\[\] from .* Say it: aux=\{\"any\": \"max\"\}"),
        (
            "largest",
            {"count": "sum", "any": "max", "smallest": "min"},
            r"is not known: largest, float32\[\] from 'reduce_max' over",
        ),
        (
            "all",
            None,
            r"these auxiliary outputs of the whole is not known: any, bool.*; count, int32.*; largest, float32.*; "
            r'smallest, .* Say it of each: aux=\{"any": "max", "count": "sum", "largest": "sum", "smallest": "sum"\}, or',
        ),
        (
            "logits",
            JOINED | {"logits": "mean"},
            r"aux= says 'mean' of logits, whose shape \[4, 5\] grows with the batch",
        ),
        ("cout", {"cout": "sum"}, r"aux= names 'cout', but the auxiliary outputs are .* Did you mean 'count'"),
        ("summ", {"count": "summ"}, r'must say "sum", "mean", "max" or "min" of an output.* Did you mean \'sum\''),
    ],
)
def test_an_auxiliary_output_that_nobody_explains_is_refused(
    controller: pw.Controller, name: str, aux: Any, says: str
) -> None:
    w, x, y = data()
    with pytest.raises(pw.UsageError, match=says):
        pw.fsdp(with_metrics, w, on=pw.virtual_slice(4), has_aux=True, aux=aux).value_and_grad(w, x, y)


def test_a_python_number_beside_the_loss_needs_a_word(controller: pw.Controller) -> None:
    w, x, y = data()

    def loss(w: Any, x: Any, y: Any) -> Any:
        return each(w, x, y).mean(), {"scale": 2.5}

    with pytest.raises(pw.UsageError, match="auxiliary output of the whole is not known: scale, a Python number. Say"):
        pw.fsdp(loss, w, on=pw.virtual_slice(4), has_aux=True).value_and_grad(w, x, y)
    step = pw.fsdp(loss, w, on=pw.virtual_slice(4), has_aux=True, aux="max")
    (_, about), _ = step.value_and_grad(step.init(w), x, y)
    close(about, {"scale": np.float32(2.5)})


LINE = next(n for n, line in enumerate(inspect.getsource(losses).splitlines(), 1) if "pure_callback" in line)


def test_numbers_decide_once_where_the_structure_does_not(controller: pw.Controller) -> None:
    w, x, y = data()
    place = pw.virtual_slice(2)
    step = pw.fsdp(UNKNOWN_BUT_RIGHT["host function"], w, on=place)
    with pytest.raises(
        pw.UsageError, match="is no mean over the rows of the batch: it is .* of the whole and .* of its"
    ):
        pw.fsdp(UNKNOWN["running sum"], w, on=place).value_and_grad(w, x, y)
    value, _ = step.value_and_grad(step.init(w), x, y)
    close(value, UNKNOWN_BUT_RIGHT["host function"](w, x, y))
    assert step.checked == "checked by numbers, once, because 'pure_callback' over the rows " + f"(losses.py:{LINE})"


def test_numbers_include_gradients(controller: pw.Controller) -> None:
    w, x, y = data()
    with pytest.raises(pw.UsageError, match="gradients of its parts together differ by .* from those of the whole"):
        pw.fsdp(losses._ranked, w, on=pw.virtual_slice(2)).value_and_grad(w, x, y)


def test_a_loss_is_not_checked_where_its_user_says_so(controller: pw.Controller) -> None:
    w, x, y = data()
    step = pw.fsdp(UNKNOWN["running sum"], w, on=pw.virtual_slice(2), check=False)
    value, _ = step.value_and_grad(step.init(w), x, y)
    half = ROWS // 2
    close(value, sum(UNKNOWN["running sum"](w, x[at], y[at]) for at in (slice(half), slice(half, None))) / 2)
    assert step.checked == "not checked: check=False"


def test_on_simulated_devices_a_line_says_what_nobody_decided() -> None:
    w, x, y = data()
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=2):
        step = pw.fsdp(UNKNOWN["running sum"], w, on=pw.virtual_slice(2))
        with pytest.warns(
            RuntimeWarning,
            match=r"whether lambda at losses.py:\d+ is a mean over what is split was not checked, because",
        ):
            pw.wait(step.value_and_grad(step.init(w), x, y))
        assert step.checked.startswith("not checked, because 'cumsum' along the rows")


def test_whole_numbers_among_the_parameters_are_named() -> None:
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=2):
        with pytest.raises(pw.UsageError, match=r"parameter order is int32, .* frozen=lambda name: name == 'order'"):
            pw.fsdp(
                masked, {"w": np.ones(3, np.float32), "order": np.arange(3, dtype=np.int32)}, on=pw.virtual_slice(2)
            )
        params, x, targets = mlp_model(2)
        pipe = pw.pipeline(
            [mlp] * 2, on=[pw.virtual_slice(1)] * 2, schedule="gpipe", microbatches=2, loss=lambda y, t: y
        )
        with pytest.raises(pw.UsageError, match=r"params\[1\]\['order'\] is int32, .*Name it in frozen="):
            pipe.value_and_grad([params[0], {**params[1], "order": np.arange(3, dtype=np.int32)}], x, targets)


def test_frozen_parameters_of_a_pipeline_stay(controller: pw.Controller) -> None:
    import optax

    number = random()
    order = number.permutation(8).astype(np.int32)

    def first(params: Any, x: Any) -> Any:
        return mlp({name: params[name] for name in ("up", "down")}, x[:, params["order"]])

    params, x, targets = mlp_model(2)
    params[0] = {**params[0], "order": order}

    def frozen(name: str) -> bool:
        return name in ("0.order", "1.down")

    def loss(trained: Any) -> Any:
        whole = [{**params[0], **trained[0]}, {**params[1], **trained[1]}]
        return jnp.mean((mlp(whole[1], first(whole[0], x)) - targets) ** 2)

    value, exact = jax.value_and_grad(loss)(
        [{name: params[0][name] for name in ("up", "down")}, {"up": params[1]["up"]}]
    )
    on = [pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)]
    for options in ({"schedule": "1f1b"}, {"schedule": "zb-h1", "fsdp": "zero3"}):
        pipe = pw.pipeline([first, mlp], on=on, microbatches=2, loss=lambda y, t: jnp.mean((y - t) ** 2), frozen=frozen,
                           **options)  # fmt: skip
        found, gradients = pipe.value_and_grad(params, x, targets)
        close((found, gradients[0]["up"], gradients[1]["up"]), (value, exact[0]["up"], exact[1]["up"]))
        close(gradients[1]["down"], np.zeros_like(params[1]["down"]))
        optimizer = optax.adamw(1e-2)
        after, _, _ = pipe.step(optimizer)(params, pipe.init(optimizer, params), x, targets)
        np.testing.assert_array_equal(after[0]["order"].result(), order)
        np.testing.assert_array_equal(after[1]["down"].result(), params[1]["down"])
        assert np.abs(after[0]["up"].result() - params[0]["up"]).max() > 1e-3


def test_each_microbatch_of_a_device_draws_its_own_numbers(controller: pw.Controller) -> None:
    def loss(w: Any, x: Any, key: Any) -> Any:
        return jnp.mean((x @ w).mean(-1) * jax.random.normal(key, x.shape[:1]))

    (w, x, _), key = data(), jax.random.key(3)
    step = pw.fsdp(loss, w, on=pw.virtual_slice(2), accumulate=2)
    found = step.value_and_grad(step.init(w), x, key)
    keys = [jax.random.fold_in(jax.random.fold_in(key, device), part) for device in range(2) for part in range(2)]
    parts = [jax.value_and_grad(loss)(w, part, own) for part, own in zip(np.split(x, 4), keys, strict=True)]
    close(found, jax.tree.map(lambda *leaves: sum(leaves) / 4, *parts))


def test_a_pipeline_whose_parts_draw_the_same_numbers_is_refused(controller: pw.Controller) -> None:
    params, x, targets = mlp_model(2)
    options: dict[str, Any] = {"on": [pw.virtual_slice(1)] * 2, "schedule": "1f1b", "microbatches": 2}

    def dropping(params: Any, x: Any, key: Any) -> Any:
        return mlp(params, x * jax.random.bernoulli(key, 0.5, x.shape))

    def squared(y: Any, targets: Any) -> Any:
        return ((y - targets) ** 2).mean()

    given = pw.pipeline([dropping] * 2, loss=squared, **options)
    pw.wait(given.value_and_grad(params, x, targets, jax.random.key(1)))
    assert given.checked == "checked by structure: the loss is a mean over what is split"
    closed = pw.pipeline([lambda params, x: dropping(params, x, jax.random.key(0))] * 2, loss=squared, **options)
    with pytest.raises(
        pw.UsageError, match=r"for squared, .* Draw in a stage with a parameter 'key', stage\(params, x,"
    ):
        closed.value_and_grad(params, x, targets)


def cross(params: Any, x: Any) -> Any:
    """Attention of every token over a memory."""
    scores = jax.nn.softmax(jnp.einsum("btd,bsd->bts", x["h"] @ params["up"], x["memory"] @ params["up"]))
    return {**x, "h": x["h"] + jnp.einsum("bts,bsd->btd", scores, x["memory"])}


def test_cross_attention_reads_a_memory_that_is_not_sliced(controller: pw.Controller) -> None:
    number = random()
    params = [{"up": normal(number, 8, 8)} for _ in range(2)]
    x = {"h": normal(number, 4, 12, 8), "memory": normal(number, 4, 12, 8)}
    targets = normal(number, 4, 12, 8)

    def tokenwise(params: Any, x: Any, context: pw.Context) -> Any:
        return cross(params, {**x, "h": x["h"] + context.positions[:, None] / 12})

    def loss(y: Any, targets: Any) -> Any:
        return jnp.mean((y["h"] - targets) ** 2)

    options: dict[str, Any] = {
        "on": [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)], "schedule": "terapipe", "microbatches": 2,
        "loss": loss, "token_slices": [6, 4, 2],
    }  # fmt: skip
    pipe = pw.pipeline([tokenwise, cross], unsliced=lambda name: "memory" in name, **options)
    close(pipe.value_and_grad(params, x, targets), jax.value_and_grad(pipe.composed)(params, x, targets))
    with pytest.raises(
        pw.UsageError, match=r"token slices change the loss .*'dot_general' of every token with every other"
    ):
        pw.pipeline([tokenwise, cross], **options).value_and_grad(params, x, targets)


def test_a_callback_that_fails_in_the_comparison_is_the_error_of_the_step(controller: pw.Controller) -> None:
    def fails(values: Any) -> Any:
        raise RuntimeError("no such table")

    def loss(w: Any, x: Any, y: Any) -> Any:
        return (each(w, x, y) * jax.pure_callback(fails, jax.ShapeDtypeStruct(y.shape, x.dtype), x[:, 0])).mean()

    w, x, y = data()
    step = pw.fsdp(loss, w, on=pw.virtual_slice(2))
    with pytest.warns(RuntimeWarning, match="comparing its parts on this host failed: .*no such table"):
        value, _ = step.value_and_grad(w, x, y)
    with pytest.raises(pw.PathwaysError, match="no such table"):
        value.result()
