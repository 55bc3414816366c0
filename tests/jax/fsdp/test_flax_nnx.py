"""A model of Flax NNX, whose parameters are split from its graph; a module used twice has its parameters once."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import pathways_nb as pw
from tests.jax.fsdp.test_modes import keeping_gradients, split
from tests.support.closeness import close

WIDTH, WORDS = 6, 11


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.norm = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, use_bias=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 10, rngs=rngs), nnx.Linear(10, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm(x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(nnx.gelu(self.up(x)))


class Transformer(nnx.Module):
    """Its output layer is its embedding."""

    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs)])
        self.out = self.embed

    def __call__(self, words: jax.Array) -> jax.Array:
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        return self.out.attend(x)


class Dropping(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.out, self.drop = nnx.Linear(WIDTH, WIDTH, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.drop(self.out(x))


def test_a_whole_model_is_refused_with_the_lines_that_split_it(left: pw.VirtualSlice) -> None:
    with pytest.raises(pw.UsageError) as error:
        pw.fsdp(lambda model, x: model(x).mean(), Dropping(nnx.Rngs(0)), on=left)
    said = str(error.value)
    assert said.startswith("fsdp: parameter drop.rngs.count.value is uint32, which has no gradient")
    assert "Dropping is a model of Flax NNX: pass its parameters alone" in said
    outside, inside = [line.strip() for line in said.splitlines()[1:]]
    assert outside == "graph, params, rest = nnx.split(model, nnx.Param, ...)"
    assert inside == "model = nnx.merge(graph, params, rest)  # in the function"
    graph, *states = nnx.split(Dropping(nnx.Rngs(0)), nnx.Param, ...)
    params, rest = states
    step = pw.fsdp(lambda params, x: (nnx.merge(graph, params, rest).out(x) ** 2).mean(), params, on=left)
    assert [one.name for one in step.parameters] == ["out.bias.value", "out.kernel.value"]


def loss(model: Transformer, words: jax.Array, targets: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(model(words), targets).mean()


def batch() -> tuple[np.ndarray, np.ndarray]:
    words, targets = np.random.default_rng(1).integers(0, WORDS, (2, 8, 5), dtype=np.int32)
    return words, targets


def test_a_model_of_flax_nnx(left: pw.VirtualSlice) -> None:
    graph, *states = nnx.split(Transformer(nnx.Rngs(0)), nnx.Param, ...)
    params, rest = states

    def loss_fn(params: Any, *batch: Any) -> jax.Array:
        return loss(nnx.merge(graph, params, rest), *batch)

    def init(key: Any) -> Any:
        return nnx.split(Transformer(nnx.Rngs(key)), nnx.Param, ...)[1]

    step = pw.fsdp(loss_fn, params, on=left, optimizer=optax.chain(keeping_gradients(), optax.adam(1e-2)))
    assert sum("embed" in one.name or "out.embedding" in one.name for one in step.parameters) == 1, "tied"
    kept, state = step.init(init, jax.random.key(0))
    assert {split(leaf) for leaf in jax.tree.leaves(kept)} == {4}
    close(step.whole(kept), params)
    kept, state, value = step(kept, state, *batch())
    expected, whole = nnx.jit(nnx.value_and_grad(loss))(nnx.merge(graph, params, rest), *batch())
    close(value, expected)
    close(step.whole(state[0]), whole)
    assert float(step(kept, state, *batch())[2]) < float(expected)
    trained = nnx.merge(graph, pw.get(step.whole(kept)), rest)
    assert trained.embed.embedding is trained.out.embedding
