"""Peak memory of a jaxpr against counts by hand and against the compiler's own figure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from pathways_nb.cost.jaxpr.liveness import peak_bytes

FACTOR = 1.4
"""How far the compiler's own peak of a training step may lie from ours, either way."""


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def peak(fn: Callable[..., Any], *args: Any, **options: Any) -> int:
    return peak_bytes(jax.make_jaxpr(fn)(*args), **options)


def compilers(fn: Callable[..., Any], *args: Any, donated: tuple[int, ...] = ()) -> int:
    found = jax.jit(fn, donate_argnums=donated).lower(*args).compile().memory_analysis()
    assert found is not None
    held = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return held + found.temp_size_in_bytes


def test_inputs_count_to_the_end_and_intermediates_to_their_last_use() -> None:
    kb = 4 * 16 * 16
    assert peak(lambda x: x @ x, array(16, 16)) == 2 * kb
    assert peak(lambda x: (x @ x) @ x, array(16, 16)) == 3 * kb
    # Of a chain of products only two intermediates live at once, beside the input.
    assert peak(lambda x: x @ x @ x @ x @ x, array(16, 16)) == 3 * kb


def test_what_stays_inside_a_fusion_takes_no_memory() -> None:
    assert peak(lambda x: jnp.tanh(jnp.exp(x) * 2) + x, array(1000)) == 8000
    assert peak(lambda x: (jnp.exp(x) * 2).sum(), array(1000)) == 4004


def test_donated_inputs_are_written_over() -> None:
    assert peak(lambda x, g: x - 0.1 * g, array(1000), array(1000)) == 12_000
    assert peak(lambda x, g: x - 0.1 * g, array(1000), array(1000), donated={0}) == 8000


def test_split_arrays_count_on_each_device() -> None:
    sizes = {"data": 4}
    assert peak(jnp.tanh, array(1000), axis_sizes=sizes, in_specs=[P("data")]) == 2000
    assert peak(lambda w, x: x @ w, array(8, 8), array(64, 8), axis_sizes=sizes, in_specs=[P(), P("data")]) == 4 * (
        64 + 256
    )


def test_residuals_of_a_deeper_network_take_more_and_recomputation_less() -> None:
    def net(depth: int, layer: Callable[..., Any]) -> Callable[..., Any]:
        def loss(w: Any, x: Any) -> Any:
            for _ in range(depth):
                x = layer(w, x)
            return x.sum()

        return jax.grad(loss)

    def layer(w: Any, x: Any) -> Any:
        return jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w)

    w, x = array(16, 16), array(4096, 16)
    size = 4 * 4096 * 16
    shallow, deep = peak(net(2, layer), w, x), peak(net(6, layer), w, x)
    assert deep - shallow == 12 * size
    assert peak(net(6, jax.checkpoint(layer)), w, x) < deep - 8 * size


def test_a_scan_carries_in_place_and_stacks_what_it_collects() -> None:
    size = 4 * 64 * 64
    carried = peak(lambda x: lax.scan(lambda c, _: (c @ c, None), x, length=9)[0], array(64, 64))
    stacked = peak(lambda x: lax.scan(lambda c, _: (c @ c, c), x, length=9), array(64, 64))
    assert stacked - carried == 9 * size
    assert carried <= 3 * size


def mlp(weights: Any, x: Any) -> Any:
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def train(weights: Any, x: Any) -> Any:
    gradients = jax.grad(mlp)(weights, x)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]


NETWORKS = {
    "wide": ([array(256, 1024), array(1024, 1024), array(1024, 64)], array(128, 256)),
    "deep": ([array(256, 256)] * 8, array(512, 256)),
    "large batch": ([array(64, 128), array(128, 64)], array(8192, 64)),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("fn", [jax.grad(mlp), train], ids=["gradient", "step"])
def test_the_peak_is_near_the_compilers(name: str, fn: Callable[..., Any]) -> None:
    args = NETWORKS[name]
    assert 1 / FACTOR <= peak(fn, *args) / compilers(fn, *args) <= FACTOR


@pytest.mark.parametrize("name", NETWORKS)
def test_the_peak_with_donated_weights_is_near_the_compilers(name: str) -> None:
    weights, x = NETWORKS[name]
    ours = peak(train, weights, x, donated=range(len(weights)))
    assert 1 / FACTOR <= ours / compilers(train, weights, x, donated=(0,)) <= FACTOR


@pytest.mark.parametrize("name", NETWORKS)
def test_the_peak_of_a_forward_pass_bounds_the_compilers(name: str) -> None:
    """XLA's CPU compiler computes products and what lies between in one call that stores no intermediate."""
    args = NETWORKS[name]
    assert compilers(mlp, *args) <= peak(mlp, *args)
