"""Code that plainly needs nothing from other devices: what is said of it, XLA's partitioner must find, too."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from pathways_nb.cost.hlo.compiled import collectives_by_compiling
from pathways_nb.cost.jaxpr.shard_local import needs_no_exchange
from pathways_nb.cost.jaxpr.splits import Split, bytes_on_device

SIZES = {"x": 2, "y": 2}
TABLE = jax.ShapeDtypeStruct((8, 4), jnp.float32)
BLOCK = jax.ShapeDtypeStruct((8, 4, 16), jnp.float32)
SQUARE = jax.ShapeDtypeStruct((16, 16), jnp.float32)


def attention(x: Any, w: Any) -> Any:
    """Rows attend to each other within a sequence."""
    scores = jnp.einsum("blf,bmf->blm", x @ w, x)
    seen = jnp.where(jnp.tril(jnp.ones((4, 4), bool)), scores, -1e30)
    return jax.nn.softmax(seen, axis=-1) @ x


LOCAL: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "attention, by sequences": (attention, (BLOCK, SQUARE), (P("x"), P())),
    "attention, by two axes": (attention, (BLOCK, SQUARE), (P(("x", "y")), P())),
    "columns of a product": (jnp.dot, (TABLE, SQUARE.update(shape=(4, 16))), (P("x"), P(None, "y"))),
    "a batch of products": (jnp.matmul, (BLOCK, SQUARE.update(shape=(8, 16, 4))), (P("x"), P("x"))),
    "a sum along what is whole": (lambda x: x.sum(2), (BLOCK,), (P("x", "y"),)),
    "heads": (lambda x: x.reshape(8, 4, 4, 4).transpose(0, 2, 1, 3), (BLOCK,), (P("x", None, "y"),)),
    "rows looked up": (lambda t, i: t[i], (TABLE, jax.ShapeDtypeStruct((16,), jnp.int32)), (P(), P("x"))),
}
NOT: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "attention, by positions": (attention, (BLOCK, SQUARE), (P(None, "x"), P())),
    "an inner dimension": (jnp.dot, (TABLE, SQUARE.update(shape=(4, 16))), (P(None, "x"), P("x"))),
    "both by one axis": (jnp.dot, (TABLE, SQUARE.update(shape=(4, 16))), (P("x"), P(None, "x"))),
    "one by rows, one by columns": (jnp.add, (SQUARE, SQUARE), (P("x"), P(None, "x"))),
    "a sum along what is split": (lambda x: x.sum(0), (BLOCK,), (P("x"),)),
    "rows of a split table": (lambda t, i: t[i], (TABLE, jax.ShapeDtypeStruct((16,), jnp.int32)), (P("x"), P())),
    "merged, the inner split": (lambda x: x.reshape(32, 16), (BLOCK,), (P(None, "x"),)),
    "a running sum": (lambda x: jnp.cumsum(x, 0), (TABLE,), (P("x"),)),
}


def says_local(fn: Callable[..., Any], args: tuple[Any, ...], specs: tuple[Any, ...]) -> bool:
    return needs_no_exchange(jax.make_jaxpr(fn)(*args), SIZES, specs)


def found(fn: Callable[..., Any], args: tuple[Any, ...], specs: tuple[Any, ...]) -> tuple[Any, ...]:
    return collectives_by_compiling(fn, args, specs, None, SIZES).collectives


@pytest.mark.parametrize("name", LOCAL)
def test_what_each_device_can_do_for_itself_needs_no_compiler(name: str) -> None:
    assert says_local(*LOCAL[name])
    assert not found(*LOCAL[name])


@pytest.mark.parametrize("name", NOT)
def test_what_needs_others_is_not_taken_for_that(name: str) -> None:
    assert not says_local(*NOT[name])


STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "tanh": lambda x, w: jnp.tanh(x),
    "product": lambda x, w: x @ w,
    "scores": lambda x, w: jnp.einsum("blf,bmf->blm", x, x) @ x,
    "norm": lambda x, w: x / (1 + jnp.abs(x).max(-1, keepdims=True)),
    "mean": lambda x, w: x - x.mean(1, keepdims=True),
    "heads": lambda x, w: x.reshape(8, 4, 4, 4).transpose(0, 1, 3, 2).reshape(8, 4, 16),
    "rows": lambda x, w: x.reshape(32, 16).reshape(8, 4, 16),
    "halves": lambda x, w: x + jnp.split(x, 2, axis=2)[0].sum(2, keepdims=True),
    "bias": lambda x, w: x + w[0],
}


@pytest.mark.parametrize("seed", range(40))
def test_a_random_chain_that_is_said_to_be_local_is(seed: int) -> None:
    rng = random.Random(seed)
    steps = [STEPS[rng.choice(list(STEPS))] for _ in range(rng.randint(1, 4))]

    def chain(x: Any, w: Any) -> Any:
        for step in steps:
            x = step(x, w)
        return x

    of_x = rng.choice([P("x"), P("x"), P(("x", "y")), P("x", "y"), P("x", None, "y"), P(None, "x")])
    specs = of_x, rng.choice([P(), P(), P("x"), P(None, "y")])
    case = chain, (BLOCK, SQUARE), specs
    assert not says_local(*case) or not found(*case)


@pytest.mark.parametrize(
    ("spec", "split", "expected"),
    [
        (P(), ((), ()), 128),
        (P("x"), (("x",), ()), 64),
        (P(None, "y"), ((), ("y",)), 64),
        (P(("x", "y")), (("x", "y"), ()), 32),
        (P("y", "x"), (("y",), ("x",)), 32),
    ],
)
def test_a_sharding_a_spec_and_a_split_tell_the_same_bytes_of_a_device(spec: P, split: Split, expected: int) -> None:
    array, sizes = jax.ShapeDtypeStruct((8, 4), jnp.float32), {"x": 2, "y": 2}
    sharding = NamedSharding(AbstractMesh((2, 2), ("x", "y")), spec)
    assert bytes_on_device(array, sharding) == expected
    assert bytes_on_device(array, spec, sizes) == expected
    assert bytes_on_device(array, split, sizes) == expected


def test_bytes_of_what_is_whole_empty_uneven_or_no_array() -> None:
    assert bytes_on_device(jnp.ones(3), SingleDeviceSharding(jax.devices()[0])) == 12
    assert bytes_on_device(jax.ShapeDtypeStruct((0, 3), jnp.float32), P(None, "x"), {"x": 2}) == 0
    assert bytes_on_device(jax.ShapeDtypeStruct((5,), jnp.int8), P("x"), {"x": 2}) == 3
    assert bytes_on_device(object(), None) == 0
