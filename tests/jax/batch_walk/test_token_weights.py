"""Earlier tokens that are added up with weights by position, such as their mean: right in token slices, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import pathways_nb as pw
from tests.support.closeness import close
from tests.support.pipelines import normal, random, squared

Pool = Callable[[pw.Context, Any, Any], Any]


def _attended(mask: Any) -> Pool:
    """Attention without a softmax, whose scores are multiplied by a mask of numbers."""
    return lambda context, past, h: (jnp.einsum("btd,bsd->bts", h, past) * mask(context)) @ past


RIGHT: dict[str, Pool] = {
    "mean": lambda context, past, h: (context.mask / context.mask.sum(-1, keepdims=True)) @ past,
    "sum, then a division": lambda context, past, h: (context.mask @ past) / (context.positions[:, None] + 1),
    "decay": lambda context, past, h: jnp.einsum(
        "ts,bsd->btd",
        jnp.where(context.mask, 0.9 ** (context.positions[:, None] - jnp.arange(past.shape[1])), 0), past,
    ),
    "window": lambda context, past, h: (context.mask & (context.positions[:, None] - jnp.arange(past.shape[1]) < 3)) @ past,
    "linear attention": _attended(lambda context: context.mask),
}  # fmt: skip
WRONG: dict[str, Pool] = {
    "all tokens": lambda context, past, h: jnp.ones((h.shape[1], past.shape[1])) @ past / 12,
    "later tokens": lambda context, past, h: (~context.mask / context.mask.sum(-1, keepdims=True)) @ past,
    "by the readers": lambda context, past, h: (context.mask / context.mask.sum(0, keepdims=True)) @ past,
    "by all pairs": lambda context, past, h: (context.mask / context.mask.sum()) @ past,
    "by the width": lambda context, past, h: (context.mask / context.mask.shape[1]) @ past,
    "positions of the slice": lambda context, past, h: (context.mask / (jnp.arange(h.shape[1])[:, None] + 1)) @ past,
    "attention to later tokens": _attended(lambda context: ~context.mask),
}  # fmt: skip


def pipe_of(pool: Pool, places: list[pw.VirtualSlice]) -> pw.Pipeline:
    def stage(params: Any, h: Any, context: pw.Context) -> Any:
        h = jnp.tanh(h @ params)
        return h + pool(context, context.append(h), h)

    return pw.pipeline(
        [stage] * 2, on=places, schedule="terapipe", microbatches=2, loss=squared, token_slices=[6, 4, 2]
    )


def model() -> tuple[Any, Any, Any]:
    number = random()
    return [normal(number, 8, 8) for _ in range(2)], normal(number, 4, 12, 8), normal(number, 4, 12, 8)


def test_a_causal_mean_in_slices_is_that_of_whole_sequences(controller: pw.Controller) -> None:
    pipe = pipe_of(RIGHT["mean"], [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)])
    close(pipe.value_and_grad(*model()), jax.value_and_grad(pipe.composed)(*model()))
    assert pipe.checked == "checked by structure: the loss is a mean over what is split"


@pytest.fixture
def places() -> Any:
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=2):
        yield [pw.virtual_slice(1), pw.virtual_slice(1)]


@pytest.mark.parametrize("name", RIGHT)
def test_weights_by_position_are_accepted_by_their_structure(places: list[pw.VirtualSlice], name: str) -> None:
    pipe = pipe_of(RIGHT[name], places)
    pw.wait(pipe.value_and_grad(*model()))
    assert pipe.checked == "checked by structure: the loss is a mean over what is split"


@pytest.mark.parametrize("name", WRONG)
def test_weights_of_later_tokens_or_of_the_slice_are_refused(places: list[pw.VirtualSlice], name: str) -> None:
    with pytest.raises(pw.UsageError, match="pipeline: token slices change the loss squared: "):
        pipe_of(WRONG[name], places).value_and_grad(*model())
