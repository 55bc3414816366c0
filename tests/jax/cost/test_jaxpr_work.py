"""The walk of a jaxpr against the compiler's own count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from tests.core.cost.test_jaxpr_work import (
    ONE_WAY,
    QKV,
    SIZES,
    WEIGHTS,
    WIDE,
    X,
    array,
    attention,
    mlp,
    same_conv,
    work,
)

pytestmark = pytest.mark.usefixtures("usual_effort")


def test_the_classes_of_other_operations() -> None:
    def fn(x: Any, key: Any) -> Any:
        bits = jax.random.bits(key, (8, 8))
        return jnp.sort(x), x[jnp.argsort(x[0])], bits, jnp.linalg.cholesky(x), x.T, x.astype(jnp.bfloat16)

    found = work(fn, array(8, 8), jax.random.key(0))
    assert found.of("random").flops == 64
    assert found.of("sort").flops == 64 * 3 + 8 * 3
    assert found.of("movement").read >= 2 * 256
    assert found.of("movement").flops == 0
    assert found.notes == ("cholesky: its operations are not counted",)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "mlp": (mlp, (WEIGHTS, X)),
    "its gradient": (jax.value_and_grad(mlp), (WEIGHTS, X)),
    "attention": (attention, tuple(QKV)),
    "its gradient too": (jax.grad(lambda *a: attention(*a).sum(), argnums=(0, 1, 2)), tuple(QKV)),
    "convolution": (same_conv, (array(4, 8, 16, 16), array(16, 8, 3, 3))),
    "its weights' gradient": (
        jax.grad(lambda w, x: (same_conv(x, w) ** 2).sum()), (array(16, 8, 3, 3), array(4, 8, 16, 16)),
    ),
    "its input's gradient": (jax.grad(lambda x, w: (same_conv(x, w) ** 2).sum()), (array(4, 8, 16, 16), array(16, 8, 3, 3))),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_operations_agree_with_the_compilers_count(name: str) -> None:
    fn, args = PROGRAMS[name]
    analysis = jax.jit(fn).lower(*args).compile().cost_analysis()
    assert analysis is not None
    assert work(fn, *args).flops == pytest.approx(analysis["flops"], rel=0.05)


@pytest.mark.parametrize("name", ["its gradient", "attention", "its gradient too"])
def test_bytes_are_near_the_compilers_count(name: str) -> None:
    """Where XLA on CPU fuses as the rule says; it joins a forward pass's products, and copies a convolution's images."""
    fn, args = PROGRAMS[name]
    analysis = jax.jit(fn).lower(*args).compile().cost_analysis()
    assert analysis is not None
    found = work(fn, *args)
    assert found.read + found.written == pytest.approx(analysis["bytes accessed"], rel=0.3)


def test_with_whole_inputs_the_outputs_divide() -> None:
    def make(key: Any) -> Any:
        return jax.random.normal(key, (1024, 64)), jnp.zeros(3)

    whole = work(make, jax.random.key(0))
    split = work(make, jax.random.key(0), axis_sizes=SIZES, out_specs=[P("data"), P()])
    assert split.flops == pytest.approx(whole.flops / 4, rel=1e-4)
    assert split.notes == ()
    product = work(lambda w, x: jnp.tanh(x @ w), WIDE[0], X, axis_sizes=SIZES, out_specs=[P("data")])
    assert product.of("matmul").flops == ONE_WAY / 4
