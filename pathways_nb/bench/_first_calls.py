"""How much of the first call of a step or a pipeline its checks of the loss take."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import optax

import pathways_nb as pw
from pathways_nb.examples import llama
from pathways_nb.parallel.batch_walk import parts
from pathways_nb.parallel.fsdp import loss_checks
from pathways_nb.parallel.pipelines import parts_against_whole
from pathways_nb.parallel.pipelines.examination import Examination
from pathways_nb.session.calls.program import Program
from pathways_nb.util.waiting import Promise

_CHECKS: list[tuple[Any, str]] = [(loss_checks, "examined"), (Examination, "examine"), (Program, "accept")]
"""The functions that check a loss, by structure and by numbers; none of them calls another one for the first time."""


def check_over_first_call(call: Callable[[], Any], concurrent: bool = True) -> float:
    """Return the seconds in which a call that traces and compiles waits for checks of its loss, over all its seconds.

    Args:
        call: makes the first call and waits for it.
        concurrent: whether numbers are compared while XLA compiles, as for a user; else before it, which counts all of
            their work, as where no processor is idle.
    """
    spent: list[float] = []

    def timed(check: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                found = check(*args, **kwargs)
            finally:
                spent.append(time.perf_counter() - began)
            return timed(found) if check.__name__ == "accept" and found is not None else found

        return run

    def at_once(work: Callable[[], Any]) -> Promise[Any]:
        promise: Promise[Any] = Promise()
        promise.set_result(work())
        return promise

    with ExitStack() as stack:
        for module in () if concurrent else (parts, parts_against_whole):
            stack.enter_context(mock.patch.object(module, "begin", at_once))
        for owner, name in _CHECKS:
            stack.enter_context(mock.patch.object(owner, name, timed(getattr(owner, name))))
        began = time.perf_counter()
        call()
        return sum(spent) / (time.perf_counter() - began)


def of_pipelines(concurrent: bool = True) -> dict[str, float]:
    """Return the share of the checks in the first call of pipelines of Llama blocks, by what the loss and cuts are."""
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "mean": (llama.loss, {"schedule": "1f1b"}),
        "masked": (_masked, {"schedule": "zb-h1"}),
        "zero3": (llama.loss, {"schedule": "1f1b", "fsdp": "zero3"}),
        "token slices": (_masked, {"schedule": "terapipe", "token_slices": [64, 32]}),
        "by numbers": (_sorted, {"schedule": "1f1b"}),
    }
    with pw.attach("cpu", islands=2, devices_per_island=2):
        on = [pw.virtual_slice(2, island=island) for island in (0, 1)]
        return {name: _of_pipeline(loss, on, options, concurrent) for name, (loss, options) in cases.items()}


def _of_pipeline(loss: Any, on: Any, options: dict[str, Any], concurrent: bool) -> float:
    (stages, params), batch = llama.stages([2, 2]), llama.batch(8, 96)
    pipe = pw.pipeline(stages, on=on, microbatches=2, loss=loss, **options)
    return check_over_first_call(lambda: pw.wait(pipe.value_and_grad(params, *batch)), concurrent)


def of_steps(concurrent: bool = True) -> dict[str, float]:
    """Return the share of the checks in the first call of sharded steps of Llama blocks, by what the loss is."""
    (stage,), (params,) = llama.stages([4])
    batch, context = llama.batch(8, 96), pw.Context(0, 96, 96, 96)

    def share(loss: Any) -> float:
        def of_params(params: Any, tokens: Any, targets: Any) -> Any:
            return loss(stage(params, tokens, context), targets)

        step = pw.fsdp(of_params, params, on=pw.virtual_slice(2), optimizer=optax.adam(1e-3))
        kept = pw.wait(step.init(params))
        return check_over_first_call(lambda: pw.wait(step(*kept, *batch)), concurrent)

    with pw.attach("cpu", islands=1, devices_per_island=2):
        return {
            name: share(loss) for name, loss in (("mean", llama.loss), ("masked", _masked), ("by numbers", _sorted))
        }


def _each(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)[..., 0]


def _masked(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return pw.mean(jnp.sum(_each(logits, targets) * (targets > 5)), jnp.sum(targets > 5))


def _sorted(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Return a mean over rows of which the structure does not show that it is one."""
    return jnp.sort(_each(logits, targets).mean(-1)).mean()
