"""A model of Equinox, whose arrays are parameters and whose functions and numbers are not."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pathways_nb as pw
from tests.jax.fsdp.test_modes import keeping_gradients, split
from tests.support.closeness import close

WIDTH, WORDS = 6, 11


class Block(eqx.Module):
    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP

    def __init__(self, key: jax.Array):
        one, two = jax.random.split(key)
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(num_heads=2, query_size=WIDTH, key=one)
        self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 10, depth=1, activation=jax.nn.gelu, key=two)

    def __call__(self, x: jax.Array) -> jax.Array:
        h = jax.vmap(self.norm)(x)
        x = x + self.attention(h, h, h, mask=jnp.tri(len(x), dtype=bool))
        return x + jax.vmap(self.mlp)(x)


class Transformer(eqx.Module):
    embed: eqx.nn.Embedding
    blocks: list[Block]
    out: eqx.nn.Linear

    def __init__(self, key: jax.Array):
        first, last, *keys = jax.random.split(key, 3)
        self.embed = eqx.nn.Embedding(WORDS, WIDTH, key=first)
        self.blocks = [Block(one) for one in keys]
        self.out = eqx.nn.Linear(WIDTH, WORDS, use_bias=False, key=last)

    def __call__(self, words: jax.Array) -> jax.Array:
        x = jax.vmap(self.embed)(words)
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.out)(x)


def loss(model: Transformer, words: jax.Array, targets: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(words), targets).mean()


def batch() -> tuple[np.ndarray, np.ndarray]:
    words, targets = np.random.default_rng(1).integers(0, WORDS, (2, 8, 5), dtype=np.int32)
    return words, targets


def test_a_model_of_equinox(left: pw.VirtualSlice) -> None:
    params, static = eqx.partition(Transformer(jax.random.key(0)), eqx.is_inexact_array)

    def loss_fn(params: Any, *batch: Any) -> jax.Array:
        return loss(eqx.combine(params, static), *batch)

    step = pw.fsdp(loss_fn, params, on=left, optimizer=optax.chain(keeping_gradients(), optax.adam(1e-2)))
    assert [one.params[0] for one in step.plan.buckets][:2] == ["embed.weight", "blocks.0.norm.weight"]
    kept, state = step.init(params)
    assert isinstance(kept, Transformer)
    assert {split(leaf) for leaf in jax.tree.leaves(kept)} == {4}
    kept, state, value = step(kept, state, *batch())
    expected, whole = eqx.filter_jit(eqx.filter_value_and_grad(loss))(eqx.combine(params, static), *batch())
    close(value, expected)
    close(step.whole(state[0]), whole)
    assert float(step(kept, state, *batch())[2]) < float(expected)


def test_a_whole_model_has_no_parameters_that_are_no_arrays(left: pw.VirtualSlice) -> None:
    model = Block(jax.random.key(0))
    with pytest.raises(pw.UsageError) as error:
        pw.fsdp(lambda m, x: m(x).mean(), model, on=left)
    said = str(error.value)
    assert said.startswith("fsdp: parameter mlp.activation is a")
    assert "Block is a model of Equinox: pass its parameters" in said
    assert [line.strip() for line in said.splitlines()[1:]] == [
        "params, rest = eqx.partition(model, eqx.is_inexact_array)",
        "model = eqx.combine(params, rest)  # in the function",
    ]


X = np.linspace(-1, 1, 5 * WIDTH, dtype=np.float32).reshape(5, WIDTH)


def test_a_whole_model_is_an_argument_and_a_result(left: pw.VirtualSlice) -> None:
    model = Block(jax.random.key(0))

    def descend(model: Block, x: Any, rate: float) -> tuple[Block, Any]:
        value, gradients = eqx.filter_value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        return eqx.apply_updates(model, jax.tree.map(lambda one: -rate * one, gradients)), value

    step = pw.jit(descend, on=left, donate_argnums=0)
    ours, theirs = pw.put(model, on=left), model
    assert ours.mlp.activation is model.mlp.activation
    for _ in range(2):
        ours, value = step(ours, X, 0.1)
        theirs, expected = descend(theirs, X, 0.1)
        close(value.result(), expected)
    assert isinstance(ours, Block)
    assert ours.mlp.activation is model.mlp.activation
    close(ours.mlp.layers[0].weight.result(), theirs.mlp.layers[0].weight)
    # A computation in a program, whose gradient is the model's, and a program that returns a model.
    run = pw.jit(lambda model, x: (model(x) ** 2).mean(), on=left)
    gradients = pw.program(lambda model, x: eqx.filter_grad(lambda model: run(model, x))(model))(model, X)
    close(
        gradients.mlp.layers[0].weight.result(),
        eqx.filter_grad(lambda m: (m(X) ** 2).mean())(model).mlp.layers[0].weight,
    )


def test_what_is_no_array_in_a_model_is_static(left: pw.VirtualSlice) -> None:
    traced = []

    def apply(model: Any, x: Any) -> Any:
        traced.append(model)
        return model(x, key=jax.random.key(0)) if isinstance(model, eqx.nn.Dropout) else jax.vmap(model)(x)

    run = pw.jit(apply, on=left)
    for activation in (jax.nn.relu, jnp.tanh, jax.nn.relu):
        model = eqx.nn.MLP(WIDTH, 3, 4, 1, activation=activation, key=jax.random.key(0))
        close(run(model, X).result(), jax.vmap(model)(X))
    assert len(traced) == 2
    # Numbers as well: a rate of 0 decides in Python.
    for rate in (0.0, 0.5):
        close(run(eqx.nn.Dropout(rate), X).result(), eqx.nn.Dropout(rate)(X, key=jax.random.key(0)))
    close(run(model=eqx.nn.Dropout(0.0), x=X).result(), X)

    class Above(eqx.Module):
        zero: float

        def __call__(self, x: Any) -> Any:
            return x * np.copysign(1, self.zero)

    for zero in (0.0, -0.0):
        close(run(Above(zero), X).result(), jax.vmap(Above(zero))(X))

    class Named(eqx.Module):
        names: Any

        def __call__(self, x: Any) -> Any:
            return x

    with pytest.raises(pw.UsageError, match=r"the leaf \{1\}, which is no array and cannot be hashed.*static=True"):
        run(Named({1}), X)
