"""Seconds to simulate, or to adopt, one step of Llama 3 8B, whose blocks stand in a loop of Python.

``python _deep_step.py simulate BLOCKS``: tensor 8 × data 16 on 128 TPU v5p, Adam, 16 sequences of 8,192 tokens, each
block computed again in the backward pass; shapes only. Counted is from the attach to the step's end, without imports.
``python _deep_step.py adopt BLOCKS``: the same step on 64 H100, tensor 8 × data 8, 64 sequences of 4,096 tokens, from
``pw.adopt`` to its seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

ROWS, TOKENS, DATA, TENSOR = 16, 8192, 16, 8


def seconds_of(what: str, blocks: int, cache: str) -> float:
    """Return the seconds that a fresh process takes.

    Args:
        what: ``"simulate"`` or ``"adopt"``.
        blocks: of the model.
        cache: the folder of what was compiled before; a new one is a cold start.
    """
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    command = [sys.executable, "-m", "pathways_nb.bench._deep_step", what, str(blocks)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def simulated() -> dict[str, float]:
    """Return the seconds of 32 simulated blocks, cold and from the cache, and how much longer they take than 2."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        deep, again = (seconds_of("simulate", 32, one) for _ in range(2))
        shallow = seconds_of("simulate", 2, other)
    return {
        "simulate_seconds_8b_128": deep,
        "simulate_seconds_8b_128_cached": again,
        "simulate_seconds_32_over_2_blocks": deep / shallow,
    }


def adopted() -> dict[str, float]:
    """Return the seconds in which the step is adopted, cold and from the cache."""
    with tempfile.TemporaryDirectory() as cache:
        first, again = (seconds_of("adopt", 32, cache) for _ in range(2))
    return {"adopt_seconds_8b": first, "adopt_seconds_cached": again}


class _DeepStep(NamedTuple):
    """The step with the shapes and layouts of its arguments."""

    function: Any
    arguments: tuple[Any, ...]
    layouts: tuple[Any, ...]


def _step(blocks: int, rows: int, length: int) -> _DeepStep:
    """Return the step, not jitted.

    Args:
        blocks: of the model.
        rows: sequences of a batch.
        length: tokens of each.
    """
    import jax
    import jax.numpy as jnp
    import optax

    import pathways_nb as pw
    from pathways_nb.examples import llama3

    shape = llama3.SHAPES["8b"]._replace(layers=blocks)
    loss, adam, params = llama3.loss(shape, remat=True), optax.adam(1e-3), llama3.params(shape, jnp.bfloat16)
    specs = jax.tree_util.tree_map_with_path(_spec, params)
    state = jax.eval_shape(adam.init, params)
    states = optax.tree_map_params(
        adam, lambda _, spec: spec, state, specs, transform_non_params=lambda _: pw.P(), is_leaf=_is_spec
    )  # fmt: skip

    def step(params: Any, state: Any, tokens: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, tokens, tokens)
        updates, state = adam.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    return _DeepStep(step, (params, state, tokens), (specs, states, pw.P("data")))


def simulate(blocks: int) -> float:
    """Return the seconds that one simulated step takes.

    Args:
        blocks: of the model.
    """
    import jax  # noqa: F401  # imports are not counted
    import optax  # noqa: F401

    import pathways_nb as pw
    from pathways_nb.examples import llama3  # noqa: F401

    began = time.perf_counter()
    pw.attach("sim", chip="tpu_v5p", islands=1, devices_per_island=DATA * TENSOR)
    place = pw.virtual_slice((DATA, TENSOR), axes=("data", "tensor"))
    function, arguments, layouts = _step(blocks, ROWS, TOKENS)
    step = pw.jit(function, on=place, in_shardings=layouts, donate_argnums=(0, 1))
    *_, value = step(*arguments)
    value.wait()
    return time.perf_counter() - began


def adopt(blocks: int) -> float:
    """Return the seconds from ``pw.adopt`` to the step's seconds on 64 H100.

    Args:
        blocks: of the model.
    """
    import jax
    from jax.sharding import AbstractMesh, AxisType, NamedSharding

    import pathways_nb as pw

    function, arguments, layouts = _step(blocks, 64, TOKENS // 2)
    mesh = AbstractMesh((1, 1), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)

    def on(spec: Any, tree: Any) -> Any:
        """Return shapes with a layout."""
        return jax.tree.map(
            lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=NamedSharding(mesh, spec)), tree
        )

    placed = [jax.tree.map(on, specs, tree, is_leaf=_is_spec) for specs, tree in zip(layouts, arguments, strict=True)]
    step = jax.jit(function, donate_argnums=(0, 1))
    began = time.perf_counter()
    _ = pw.adopt(step, *placed, chip="gpu_h100_sxm", mesh={"data": 8, "tensor": 8}).seconds
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
    what = {"simulate": simulate, "adopt": adopt}[sys.argv[1]]
    sys.stdout.write(f"{what(int(sys.argv[2]))}\n")
