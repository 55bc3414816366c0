"""The programs of the fidelity bench: no calibration measures any of them, and nothing is fitted to their times.

Each function takes a place on either island and returns a function that starts one step and returns its futures.
Nothing depends on whether the islands are real: called again in the simulator, the same lines make the twin. The six
cover pipelines, chains on one island and across two, several clients, and collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pathways_nb as pw
from pathways_nb.examples import two_stages

Start = Callable[[], Any]
ROWS, WIDTH = 160, 224
"""Rows and columns of an array of all devices of a place; weights are square."""
MICROBATCHES, LAYERS, LENGTH, BATCH = 6, 3, 24, 5
"""Microbatches of the pipeline; layers of its stages and of an FSDP step; nodes of a chain; calls of each tenant."""
_TENANTS = {"small": 1, "medium": 4, "large": 12}
"""Layers of each tenant's program."""


def quickstart(left: pw.VirtualSlice, right: pw.VirtualSlice) -> Start:
    """Return a training step of notebook 01: a byte-level transformer in two stages, eight microbatches, AdamW."""
    step = two_stages.pipelined(left, right)
    params, state, tokens, targets = two_stages.start()

    def start() -> Any:
        nonlocal params, state
        params, state, loss = step(params, state, tokens, targets)
        return params, state, loss

    return start


def pipeline(left: pw.VirtualSlice, right: pw.VirtualSlice) -> Start:
    """Return the gradient of two stages of residual layers, one stage on either island, over microbatches."""
    rows = pw.P(left.axes[0])
    first = pw.jit(_layers, on=left, in_shardings=(None, rows), out_shardings=rows)
    second = pw.jit(lambda p, x: jnp.mean(_layers(p, x) ** 2), on=right, in_shardings=(None, rows))

    def loss(first_params: Any, second_params: Any, parts: Any) -> Any:
        return sum(second(second_params, first(first_params, part)) for part in parts)

    step = pw.program(jax.grad(loss, argnums=(0, 1)), name="pipeline")
    weights = [_weights(place, LAYERS) for place in (left, right)]
    parts = [_rows(left) for _ in range(MICROBATCHES)]
    return lambda: step(*weights, parts)


def chain(left: pw.VirtualSlice, right: pw.VirtualSlice) -> Start:
    """Return a chain of nodes on one island."""
    return _chain("chain", left)


def relay(left: pw.VirtualSlice, right: pw.VirtualSlice) -> Start:
    """Return a chain whose nodes alternate between the islands, so that every edge is a transfer."""
    return _chain("relay", left, right)


def tenants(left: pw.VirtualSlice, right: pw.VirtualSlice) -> Start:
    """Return a batch of three clients' programs, of one, four and twelve layers, all on one island."""
    programs = [(pw.client(name), _tenant(name, left, layers)) for name, layers in _TENANTS.items()]

    def start() -> list[Any]:
        futures = []
        for _ in range(BATCH):
            for client, call in programs:
                with client.acting():
                    futures.append(call())
        return futures

    return start


def fsdp(left: pw.VirtualSlice, right: pw.VirtualSlice) -> Start:
    """Return a step on sharded parameters: an all-gather of each layer, compute, a reduce-scatter of each gradient."""
    axis = left.axes[0]
    split = pw.P(axis)

    def node(shards: list[Any], x: Any) -> list[Any]:
        def loss(shards: list[Any]) -> Any:
            whole = [jax.lax.all_gather(shard, axis, tiled=True) for shard in shards]
            return jnp.mean(_layers(whole, x) ** 2)

        gradients = jax.grad(loss)(shards)  # the gradient of an all-gather is a reduce-scatter
        return [shard - 0.01 * gradient for shard, gradient in zip(shards, gradients, strict=True)]

    step = pw.shard_map(node, on=left, in_specs=(split, split), out_specs=split)
    steps = pw.program(lambda shards, x: step(step(shards, x), x), name="fsdp")
    shards = [pw.put(_weight(), on=left, shardings=split) for _ in range(LAYERS)]
    x = _rows(left)
    return lambda: steps(shards, x)


PROGRAMS = {program.__name__: program for program in (quickstart, pipeline, chain, relay, tenants, fsdp)}


def _layers(weights: Any, x: Any) -> Any:
    """Return the output of residual layers, one for each weight."""
    for weight in weights:
        x = x + jax.nn.gelu(x @ weight)
    return x


def _chain(name: str, *places: pw.VirtualSlice) -> Start:
    """Return a chain of ``LENGTH`` nodes that alternate between the places."""
    rows = pw.P(places[0].axes[0])
    nodes = [pw.jit(_layers, on=place, in_shardings=(None, rows), out_shardings=rows) for place in places]

    def body(weights: Any, x: Any) -> Any:
        for number in range(LENGTH):
            turn = number % len(nodes)
            x = nodes[turn](weights[turn], x)
        return x

    whole = pw.program(body, name=name)
    weights, x = [_weights(place, 1) for place in places], _rows(places[0])
    return lambda: whole(weights, x)


def _tenant(name: str, place: pw.VirtualSlice, layers: int) -> Start:
    """Return a program of some layers in one node."""
    rows = pw.P(place.axes[0])
    node = pw.jit(_layers, on=place, in_shardings=(None, rows), out_shardings=rows)
    whole, weights, x = pw.program(lambda p, x: node(p, x), name=name), _weights(place, layers), _rows(place)
    return lambda: whole(weights, x)


def _weight() -> np.ndarray:
    return np.full((WIDTH, WIDTH), 0.1 / WIDTH, np.float32)


def _weights(place: pw.VirtualSlice, layers: int) -> list[Any]:
    return [pw.put(_weight(), on=place) for _ in range(layers)]


def _rows(place: pw.VirtualSlice) -> Any:
    return pw.put(np.ones((ROWS, WIDTH), np.float32), on=place, shardings=pw.P(place.axes[0]))
