"""What a pipeline refuses of its parameters, states, batches and shardings, and what works in any form."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pathways_nb as pw
from tests.support.closeness import close
from tests.support.pipelines import LENGTH, mlp, mlp_model, squared

ADAM, SGD = optax.adam(1e-3), optax.sgd(1e-3)


def pipe_of(microbatches: int = 2, **options: Any) -> pw.Pipeline:
    on = [pw.virtual_slice(2, island=0, name="l"), pw.virtual_slice(2, island=1, name="r")]
    return pw.pipeline([mlp, mlp], on=on, schedule="1f1b", microbatches=microbatches, loss=squared, **options)


def stepped(made_by: Any = ADAM, optimizer: Any = ADAM, change: Callable[[Any], Any] = lambda state: state) -> None:
    pipe, (params, x, targets) = pipe_of(), mlp_model(2)
    pipe.step(optimizer)(params, change(pipe.init(made_by, params)), x, targets)


def of_larger(state: Any) -> Any:
    return jax.tree.map(lambda leaf: np.concatenate([leaf, leaf], -1) if np.ndim(leaf) else leaf, pw.get(state))


def keyed(key: Any) -> None:
    params, x, targets = mlp_model(2)
    pipe_of().value_and_grad(params, {"h": x, "key": key}, targets)


def with_shardings(first: Any) -> pw.Pipeline:
    return pipe_of(shardings=[first, pw.P()])


def rows(count: int, **options: Any) -> None:
    params, x, targets = mlp_model(2, rows=count)
    pipe_of(8, **options).value_and_grad(params, x, targets)


ONE_EACH = "pipeline: params must be a list with a tree for each of 2 stages; given is "
OTHER = ", but it must be that of the optimizer. Give the state of pipe.init(optimizer, params) of the same optimizer"
TWICE = "names the axis 'x' of l for dimensions 0 and 1: an axis divides one dimension, once."
KEY = "which has no rows to divide into microbatches. Give it beside the batch, value_and_grad(params, x, targets, key)"

REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "too few": (lambda: pipe_of().init(ADAM, mlp_model(1)[0]), pw.UsageError, f"{ONE_EACH}1 tree."),
    "too many": (lambda: pipe_of().init(ADAM, mlp_model(3)[0]), pw.UsageError, f"{ONE_EACH}3 trees."),
    "one tree": (lambda: pipe_of().init(ADAM, mlp_model(1)[0][0]), pw.UsageError, f"{ONE_EACH}a dict."),
    "nothing": (lambda: pipe_of().init(ADAM, None), pw.UsageError, f"{ONE_EACH}a NoneType."),
    "no list": (lambda: pipe_of().init(ADAM, np.ones(2)), pw.UsageError, f"{ONE_EACH}one array."),
    "a state that lacks something": (lambda: stepped(SGD), pw.UsageError, f"pipeline: the state lacks 0.count{OTHER}"),
    "a state with more": (  # it was passed through, unchanged and unsaid
        lambda: stepped(ADAM, SGD), pw.UsageError, "pipeline: the state has 0.count, which the step does not know",
    ),
    "a state of other arrays": (
        lambda: stepped(optax.sgd(1e-3, 0.9)), pw.UsageError, "the state has 0.trace.0.down and lacks 0.count",
    ),
    "a state of the same arrays": (
        lambda: stepped(ADAM, optax.adamw(1e-3)), pw.UsageError, "pipeline: the state consists of ScaleByAdamState, "
        "EmptyState, not of ScaleByAdamState, EmptyState, EmptyState",
    ),
    "a part of a state": (lambda: stepped(change=lambda s: s[0]), pw.UsageError, "has count and lacks 0.count"),
    "no state": (lambda: stepped(change=lambda s: None), pw.UsageError, f"pipeline: the state is None{OTHER}"),
    "a state of other shapes": (
        lambda: stepped(change=of_larger), pw.UsageError,
        "pipeline: 0.mu.0.down of the state has the shape [16, 16], but [16, 8] for these parameters.",
    ),
    "a row for two devices": (
        lambda: rows(8, data_sharding=pw.P("x")), pw.UsageError,
        "pipeline: data_sharding=P('x') splits the 1 row of each of 8 microbatches over 2 devices of l. Give a batch "
        "of 16 rows, or fewer microbatches.",
    ),
    "a row for two devices of FSDP": (
        lambda: rows(8, fsdp="zero3"), pw.UsageError, "stage 0 splits the 1 row of a microbatch over 2 devices of l",
    ),
    "an unknown axis": (
        lambda: with_shardings({"up": pw.P(), "down": pw.P("y")}), pw.ShardingError,
        "pipeline: shardings[0]['down'] = P('y') names the axis 'y', but the place l has only 'x'.",
    ),
    "an axis twice": (
        lambda: with_shardings(pw.P("x", "x")), pw.ShardingError, f"pipeline: shardings[0] = P('x', 'x') {TWICE}",
    ),
    "no spec": (
        lambda: with_shardings("x"), pw.ShardingError,
        "pipeline: shardings[0] = 'x' is a str; write a pw.P(...) over the axes of l.",
    ),
    "an unknown axis for the batch": (
        lambda: pipe_of(data_sharding=pw.P("y")), pw.ShardingError,
        "pipeline: data_sharding = P('y') names the axis 'y', but the place l has only 'x'.",
    ),
    "an axis twice for the batch": (
        lambda: pipe_of(data_sharding=pw.P("x", "x")), pw.ShardingError, f"data_sharding = P('x', 'x') {TWICE}",
    ),
    "frozen without effect": (
        lambda: pipe_of(frozen=lambda name: name.startswith("1.donw")).value_and_grad(*mlp_model(2)), pw.UsageError,
        "pipeline: frozen= is true of no name in params, so it has no effect. Did you mean '1.down' or '0.down' "
        "or 'down'? The names are 0.down, 0.up, 1.down, 1.up. Compare",
    ),
    "not sliced without effect": (
        lambda: pipe_of(unsliced=lambda name: name == "memory").value_and_grad(*mlp_model(2)), pw.UsageError,
        "pipeline: unsliced= is true of no name in x, so it has no effect.",
    ),
    "a key": (
        lambda: keyed(jax.random.PRNGKey(0)), pw.UsageError,
        f"pipeline: ['x']['key'] (uint32[2]) is a random key, {KEY}",
    ),
    "a typed key": (
        lambda: keyed(jax.random.key(0)), pw.UsageError, f"['x']['key'] (key<fry>[]) is a random key, {KEY}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_named_with_the_fix(controller: pw.Controller, name: str) -> None:
    call, error, text = REFUSED[name]
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)


def test_parameters_may_be_a_list_or_a_tuple_whatever_the_state_was_made_for(controller: pw.Controller) -> None:
    pipe, (params, x, targets) = pipe_of(), mlp_model(2)
    step, of = pipe.step(ADAM), {list: params, tuple: tuple(params)}
    wanted = pw.get(step(params, pipe.init(ADAM, params), x, targets))
    for given, made_for in ((tuple, tuple), (tuple, list), (list, tuple)):
        found = pw.get(step(of[given], pipe.init(ADAM, of[made_for]), x, targets))
        assert type(found[0]) is given
        close(jax.tree.leaves(found), jax.tree.leaves(wanted))


@pytest.mark.parametrize(
    ("cut", "shape", "slice_of", "fits"),
    [
        (lambda mask, h: mask, (12, 12), "6 tokens that ends at token 6 of 12: it is made for the whole", (6, 6)),
        (
            lambda mask, h: mask[: h.shape[1]],
            (6, 12),
            "6 tokens that ends at token 6 of 12: it is made for the",
            (6, 6),
        ),
        (lambda mask, h: mask[: h.shape[1], : h.shape[1]], (4, 4), "4 tokens that ends at token 10 of 12", (4, 10)),
    ],
)
def test_a_mask_that_fits_no_token_slice_is_named_with_its_line(
    controller: pw.Controller, cut: Any, shape: Any, slice_of: str, fits: Any
) -> None:
    whole = np.tril(np.ones((LENGTH, LENGTH), bool))

    def masked(params: Any, h: Any, context: pw.Context) -> Any:
        keys = context.append(h @ params)
        scores = jnp.where(cut(whole, h), h @ keys.swapaxes(1, 2), -1e30)
        return jax.nn.softmax(scores) @ keys

    line = inspect.getsourcelines(masked)[1] + 2
    on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
    pipe = pw.pipeline([masked] * 2, on=on, schedule="terapipe", microbatches=2, loss=squared, token_slices=[6, 4, 2])
    h = np.ones((4, LENGTH, 8), np.float32)
    with pytest.raises(pw.UsageError) as error:
        pipe.value_and_grad([np.eye(8, dtype=np.float32)] * 2, h, h)
    said = str(error.value)
    place = f"test_refused_calls.py:{line}"
    assert said.startswith(
        f"pipeline: stage 0 (masked) meets an array of shape {shape} ({place}) in a slice of {slice_of}"
    )
    assert f"For attention take context.mask, here of shape {fits}; from a table by position take" in said
