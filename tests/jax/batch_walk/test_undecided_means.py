"""Losses with ``pw.mean`` whose structure does not decide: totals and counts of parts are compared with the whole."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from tests.jax.batch_walk.losses import data, each, seen
from tests.support.closeness import close
from tests.support.pipelines import mlp, mlp_model, normal, random


def on_host(values: Any) -> Any:
    return jax.pure_callback(np.tanh, jax.ShapeDtypeStruct(values.shape, values.dtype), values)


def of_host(w: Any, x: Any, y: Any) -> Any:
    return pw.mean((each(w, x, y) * seen(y) * on_host(x[:, 0])).sum(), on_host(seen(y)).sum())


def running(w: Any, x: Any, y: Any) -> Any:
    return pw.mean(jnp.cumsum(each(w, x, y) * seen(y)).sum(), seen(y).sum())


def test_numbers_decide_on_a_step_with_a_mean(controller: pw.Controller) -> None:
    w, x, y = data()
    y[:6] = 0  # so that the parts have other counts, and the first none
    step = pw.fsdp(of_host, w, on=pw.virtual_slice(4))
    close(step.value_and_grad(step.init(w), x, y), jax.value_and_grad(of_host)(w, x, y))
    assert step.checked.startswith("checked by numbers, once, because 'pure_callback' over the rows (test_undecided_")
    with pytest.raises(
        pw.UsageError, match=r"fsdp: running is no mean over the rows .* of the whole and .*'cumsum' along"
    ):
        pw.fsdp(running, w, on=pw.virtual_slice(4)).value_and_grad(w, x, y)


def squares(h: Any, targets: Any) -> Any:
    wanted, mask = targets
    return pw.mean((((h - wanted) ** 2).mean(-1) * mask * on_host(mask)).sum(), mask.sum())


def counted_in_turn(h: Any, targets: Any) -> Any:
    wanted, mask = targets
    return pw.mean((((h - wanted) ** 2).mean(-1) * mask).sum(), jnp.cumsum(mask).sum())


def test_numbers_decide_on_a_pipeline_with_a_mean(controller: pw.Controller) -> None:
    params, x, targets = mlp_model(2)
    mask = np.array([1, 0, 0, 0, 1, 0, 1, 1], np.float32)
    options: dict[str, Any] = {
        "on": [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)], "schedule": "1f1b", "microbatches": 2,
    }  # fmt: skip
    pipe = pw.pipeline([mlp] * 2, loss=squares, **options)
    close(
        pipe.value_and_grad(params, x, (targets, mask)), jax.value_and_grad(pipe.composed)(params, x, (targets, mask))
    )
    assert pipe.checked.startswith("checked by numbers, once, because 'pure_callback' over the rows")
    with pytest.raises(pw.UsageError, match="pipeline: counted_in_turn is no mean over the rows"):
        pw.pipeline([mlp] * 2, loss=counted_in_turn, **options).value_and_grad(params, x, (targets, mask))


def test_numbers_decide_on_token_slices_with_a_mean(controller: pw.Controller) -> None:
    def stage(params: Any, h: Any, context: pw.Context) -> Any:
        return jnp.tanh(h @ params)

    def in_turn(values: np.ndarray) -> np.ndarray:
        return np.cumsum(values, -1).astype(np.float32)

    def shifted(h: Any, targets: Any) -> Any:
        wanted, mask = targets
        weights = jax.pure_callback(in_turn, jax.ShapeDtypeStruct(mask.shape, mask.dtype), mask)
        return pw.mean((((h - wanted) ** 2).mean(-1) * weights).sum(), mask.sum())

    number = random()
    params, x, wanted = [normal(number, 8, 8)] * 2, normal(number, 4, 12, 8), normal(number, 4, 12, 8)
    mask = (number.random((4, 12)) > 0.5).astype(np.float32)
    mask[:, :6] = 0  # a slice that counts nothing
    options: dict[str, Any] = {
        "on": [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)], "schedule": "terapipe", "microbatches": 2,
        "token_slices": [6, 4, 2],
    }  # fmt: skip
    pipe = pw.pipeline([stage] * 2, loss=squares, **options)
    close(pipe.value_and_grad(params, x, (wanted, mask))[0], pipe.composed(params, x, (wanted, mask)))
    assert "checked by numbers, once, because 'pure_callback' over the tokens" in pipe.checked
    with pytest.raises(pw.UsageError, match=r"token slices change the loss shifted: it is .* of the whole and"):
        pw.pipeline([stage] * 2, loss=shifted, **options).value_and_grad(params, x, (wanted, mask))


def test_what_nobody_decides_is_said_by_the_step_and_the_pipeline() -> None:
    w, x, y = data()
    params, inputs, targets = mlp_model(2)
    mask = np.ones(len(inputs), np.float32)
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=2):
        step = pw.fsdp(running, w, on=pw.virtual_slice(2))
        pipe = pw.pipeline([mlp] * 2, on=[pw.virtual_slice(1)] * 2, schedule="1f1b", microbatches=2, loss=squares)
        with pytest.warns(
            RuntimeWarning, match="whether running is a mean over what is split was not checked, because"
        ):
            pw.wait(step.value_and_grad(step.init(w), x, y))
        with pytest.warns(
            RuntimeWarning, match="whether squares is a mean over what is split was not checked, because"
        ):
            pw.wait(pipe.value_and_grad(params, inputs, (targets, mask)))
    assert step.checked.startswith("not checked, because 'cumsum' along the rows")
    assert pipe.checked.startswith("not checked, because 'pure_callback' over the rows")
