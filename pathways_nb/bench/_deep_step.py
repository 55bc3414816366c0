"""Seconds to simulate one step of Llama 3 8B, whose blocks stand in a loop of Python: ``python _deep_step.py BLOCKS``.

Tensor 8 × data 16 on 128 TPU v5p, Adam, 16 sequences of 8,192 tokens, each block computed again in the backward pass;
shapes only. Counted is from the attach to the step's end, without imports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from typing import Any

ROWS, TOKENS, DATA, TENSOR = 16, 8192, 16, 8


def seconds_of(blocks: int, cache: str) -> float:
    """Return the seconds that a fresh process takes.

    Args:
        blocks: of the model.
        cache: the folder of what was compiled before; a new one is a cold start.
    """
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    command = [sys.executable, "-m", "pathways_nb.bench._deep_step", str(blocks)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def figures() -> dict[str, float]:
    """Return the seconds of 32 blocks, cold and from the cache, and how much longer they take than 2."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        deep, again, shallow = seconds_of(32, one), seconds_of(32, one), seconds_of(2, other)
    return {
        "simulate_seconds_8b_128": deep,
        "simulate_seconds_8b_128_cached": again,
        "simulate_seconds_32_over_2_blocks": deep / shallow,
    }


def simulate(blocks: int) -> float:
    """Return the seconds that one simulated step takes.

    Args:
        blocks: of the model.
    """
    import jax
    import jax.numpy as jnp
    import optax

    import pathways_nb as pw
    from pathways_nb.examples import llama3

    began = time.perf_counter()
    pw.attach("sim", chip="tpu_v5p", islands=1, devices_per_island=DATA * TENSOR)
    place = pw.virtual_slice((DATA, TENSOR), axes=("data", "tensor"))
    shape = llama3.SHAPES["8b"]._replace(layers=blocks)
    loss, adam, params = llama3.loss(shape, remat=True), optax.adam(1e-3), llama3.params(shape, jnp.bfloat16)
    specs = jax.tree_util.tree_map_with_path(_spec, params)
    state = jax.eval_shape(adam.init, params)
    states = optax.tree_map_params(
        adam, lambda _, spec: spec, state, specs, transform_non_params=lambda _: pw.P(), is_leaf=_is_spec
    )  # fmt: skip

    @partial(pw.jit, on=place, in_shardings=(specs, states, pw.P("data")), donate_argnums=(0, 1))
    def step(params: Any, state: Any, tokens: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, tokens, tokens)
        updates, state = adam.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    *_, value = step(params, state, jax.ShapeDtypeStruct((ROWS, TOKENS), jnp.int32))
    value.wait()
    return time.perf_counter() - began


def _spec(path: Any, _: Any) -> Any:
    """Return how a parameter is divided: columns of what reads the residual stream, rows of what adds to it."""
    import pathways_nb as pw

    name = path[-1].key
    if name in ("query", "key", "value", "gate", "up", "head"):
        return pw.P(None, "tensor")
    return pw.P("tensor", None) if name in ("out", "down", "embedding") else pw.P()


def _is_spec(one: Any) -> bool:
    import pathways_nb as pw

    return isinstance(one, pw.P)


if __name__ == "__main__":
    sys.stdout.write(f"{simulate(int(sys.argv[1]))}\n")
