"""Peak memory of a jaxpr against the compiler's own figure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.core.cost.test_jaxpr_peak_memory import array, peak

pytestmark = pytest.mark.usefixtures("usual_effort")

FACTOR = 1.4
"""How far the compiler's own peak of a training step may lie from ours, either way."""


def compilers(fn: Callable[..., Any], *args: Any, donated: tuple[int, ...] = ()) -> int:
    found = jax.jit(fn, donate_argnums=donated).lower(*args).compile().memory_analysis()
    assert found is not None
    held = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return held + found.temp_size_in_bytes


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
