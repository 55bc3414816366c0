"""Peak memory of a jaxpr against counts by hand and against the compiler's own figure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from pathways_nb.cost.jaxpr.liveness import peak_bytes


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def peak(fn: Callable[..., Any], *args: Any, **options: Any) -> int:
    return peak_bytes(jax.make_jaxpr(fn)(*args), **options)


def test_inputs_count_to_the_end_and_intermediates_to_their_last_use() -> None:
    kb = 4 * 16 * 16
    assert peak(lambda x: x @ x, array(16, 16)) == 2 * kb
    assert peak(lambda x: (x @ x) @ x, array(16, 16)) == 3 * kb
    # Of a chain of products only two intermediates live at once with the input.
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
