"""What real training needs of a pipeline: an optimizer, clipping, dropout, auxiliary outputs, tied weights, shards."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

import pathways_nb as pw
from tests.support.closeness import close
from tests.support.pipelines import HIDDEN, WORDS, D, mlp, mlp_model, normal, random, squared


def drop(params, x, key):
    """A residual layer with dropout."""
    hidden = jnp.tanh(x @ params["up"])
    return x + jnp.where(jax.random.bernoulli(key, 0.8, hidden.shape), hidden / 0.8, 0) @ params["down"]


def lookup(params, x, key):
    return drop(params, params["table"][x], key)


def logits(params, x, key):
    return drop(params, x, key) @ params["table"].T


def labelled(y, targets):
    loss = -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(y), targets[:, None], -1))
    return loss, {"correct": jnp.mean(y.argmax(-1) == targets)}


def tied_model():
    n = random()
    params = [{"up": normal(n, D, HIDDEN), "down": normal(n, HIDDEN, D)} for _ in range(2)]
    params[0]["table"] = params[1]["table"] = normal(n, WORDS, D)
    return params, n.integers(0, WORDS, 16), n.integers(0, WORDS, 16)


WITH_TABLE = {"up": pw.P(None, "x"), "down": pw.P("x"), "table": pw.P()}


def tied_pipeline() -> pw.Pipeline:
    return pw.pipeline(
        [lookup, logits], on=[pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)],
        schedule="zb-h1", microbatches=4, loss=labelled, has_aux=True, data_sharding=pw.P("x"),
        shardings=[WITH_TABLE, WITH_TABLE], tied=[[(0, "table"), (1, "table")]],
    )  # fmt: skip


def test_training_with_dropout_clipping_tied_weights_and_shards_equals_plain_jax(controller) -> None:
    pipe, (params, x, targets) = tied_pipeline(), tied_model()
    optimizer, key = optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2)), jax.random.key(3)
    step, state = pipe.step(optimizer), pipe.init(optimizer, params)
    plain, plain_state = params, optimizer.init(params)
    for _ in range(3):
        params, state, (value, aux) = step(params, state, x, targets, key)

        def composed(tree):
            return pipe.composed([{**tree[0], "table": tree[1]["table"]}, *tree[1:]], x, targets, key)

        (expected, about), gradients = jax.jit(jax.value_and_grad(composed, has_aux=True))(plain)
        gradients[0]["table"] = gradients[1]["table"]
        updates, plain_state = optimizer.update(gradients, plain_state, plain)
        plain = optax.apply_updates(plain, updates)
        close(value, expected)
        np.testing.assert_array_equal(np.asarray(aux["correct"]), about["correct"])
    close(params, plain)
    close(params[0]["table"], params[1]["table"])
    assert params[1]["up"].sharding.spec == pw.P(None, "x")
    assert state[1][0].mu[1]["down"].sharding.spec == pw.P("x")


def test_after_the_first_step_no_state_moves(controller) -> None:
    pipe, (params, x, targets) = tied_pipeline(), tied_model()
    optimizer = optax.adam(1e-2)
    step, state, key = pipe.step(optimizer), pipe.init(optimizer, params), jax.random.key(0)
    params, state, _ = step(params, state, x, targets, key)
    pw.wait(params)
    with pw.record() as run:
        pw.wait(step(params, state, x, targets, key))
    moved = run.events.of_kind("transfer")
    names = {name for name in moved["name"].tolist() if name.startswith(("params", "state"))}
    assert not names


def test_dropout_depends_on_stage_and_microbatch_and_not_on_the_schedule(controller) -> None:
    params, x, _ = mlp_model(2)
    key, found = jax.random.key(1), []
    on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
    for name in ("gpipe", "zb-h1"):
        pipe = pw.pipeline([drop, drop], on=on, schedule=name, microbatches=4, loss=squared)
        found.append(pw.get(pipe.value_and_grad(params, x, x, key)))
    close(*found)
    keys = [pw.Pipeline.stage_key(key, *at) for at in [(0, 0), (0, 1), (1, 0), (0, 0, 1)]]
    assert len({tuple(jax.random.key_data(one).tolist()) for one in keys}) == 4


def test_inside_a_program_with_rematerialisation_and_low_precision(controller) -> None:
    def remat(params, x):
        return jax.lax.scan(lambda h, p: (jax.checkpoint(mlp)(p, h), None), x, params)[0]

    params, x, targets = mlp_model(4)
    stacked = [jax.tree.map(lambda *a: np.stack(a), *params[at : at + 2]) for at in (0, 2)]
    on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
    pipe = pw.pipeline([remat, remat], on=on, schedule="zb-h1", microbatches=2, loss=squared)

    @pw.program
    def both(params, x, targets):
        value, gradients = pipe.value_and_grad(params, x, targets)
        return value * 2, jax.tree.map(lambda g: -g, gradients)

    value, gradients = both(stacked, x, targets)
    expected, exact = jax.jit(jax.value_and_grad(pipe.composed))(stacked, x, targets)
    close(value, 2 * expected)
    close(jax.tree.map(np.negative, pw.get(gradients)), exact)
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), (stacked, x, targets))
    value, gradients = pipe.value_and_grad(*half)
    assert {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {jnp.dtype(jnp.bfloat16)}
    close(jax.tree.map(lambda g: np.asarray(g, np.float32), pw.get(gradients)), exact, 3e-2)


def test_an_optimizer_that_masks_parameters(controller) -> None:
    """Its state has another form than the parameters: it stays where it is made, and the step is the same."""
    params, x, targets = mlp_model(2)
    optimizer = optax.masked(optax.adam(1e-2), jax.tree.map(lambda leaf: leaf.shape[0] == D, params))
    on = [pw.virtual_slice(1, island=0), pw.virtual_slice(1, island=1)]
    pipe = pw.pipeline([mlp] * 2, on=on, schedule="1f1b", microbatches=2, loss=squared)
    found, _, _ = pipe.step(optimizer)(params, pipe.init(optimizer, params), x, targets)
    gradients = jax.grad(pipe.composed)(params, x, targets)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    close(found, optax.apply_updates(params, updates))
