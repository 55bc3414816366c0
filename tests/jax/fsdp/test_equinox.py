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


def test_a_whole_model_is_refused_with_the_lines_that_split_it(left: pw.VirtualSlice) -> None:
    model = Block(jax.random.key(0))
    run = pw.jit(lambda model, x: model(x), on=left)
    whole = {
        "fsdp: parameter mlp.activation is a": lambda: pw.fsdp(lambda m, x: m(x).mean(), model, on=left),
        "put: tree['first'].mlp.activation = ": lambda: pw.put({"first": model}, on=left),
        "<lambda>: argument model.mlp.activation = ": lambda: run(model, np.ones((5, WIDTH), np.float32)),
    }
    for begins, call in whole.items():
        with pytest.raises(pw.UsageError) as error:
            call()
        said = str(error.value)
        assert said.startswith(begins)
        assert "static_argnames" not in said
        assert "Block is a model of Equinox: pass its " in said
        name, only = ("params", "eqx.is_inexact_array") if begins.startswith("fsdp") else ("arrays", "eqx.is_array")
        lines = [
            f"{name}, rest = eqx.partition(model, {only})",
            f"model = eqx.combine({name}, rest)  # in the function",
        ]
        assert [line.strip() for line in said.splitlines()[1:]] == lines
    arrays, rest = eqx.partition(model, eqx.is_array)
    x = np.ones((5, WIDTH), np.float32)
    close(pw.jit(lambda arrays, x: eqx.combine(arrays, rest)(x), on=left)(pw.put(arrays, on=left), x), model(x))
