"""Digests of jaxprs tell apart what computes something else, and agree between processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pathways_nb.jaxpr.jaxpr_digest import JaxprDigests, digest_of, is_of_this_process

V = np.linspace(0.0, 1.0, 8, dtype=np.float32)
STEP = """
import jax, jax.numpy as jnp
from pathways_nb.jaxpr.jaxpr_digest import digest_of

def step(v):
    relu = jax.checkpoint(jax.nn.relu, policy=jax.checkpoint_policies.dots_saveable)
    layer = jax.jit(lambda carry, _: (jnp.sin(relu(carry)) @ jnp.ones((8, 8)), None))
    return jax.lax.scan(layer, v, length=3)[0].sum()

found = digest_of(jax.make_jaxpr(jax.value_and_grad(step))(jnp.ones((8, 8))))
"""
ONES, OTHERS = np.ones(3, np.float32), np.array([1, 1, 2], np.float32)


def digest(function: Callable[..., Any], *args: Any) -> str:
    return digest_of(jax.make_jaxpr(function)(*args))


def looped(by: Any) -> Callable[[Any], Any]:
    return lambda v: jax.lax.scan(lambda carry, _: (carry * by, None), v[:3, 0], length=2)[0]


def repeated(trips: int) -> Callable[[Any], Any]:
    return lambda v: jax.lax.fori_loop(0, trips, lambda _, carry: jnp.sin(carry), v)


def branched(*branches: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda v: jax.lax.cond(v[0, 0] > 0, *branches, v)


def constrained(*spec: str | None) -> Callable[[Any], Any]:
    mesh = jax.make_mesh((1, 1), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    layout = jax.sharding.NamedSharding(mesh, jax.P(*spec))
    return lambda v: jax.lax.with_sharding_constraint(v, layout)


def one(v: Any) -> Any:
    return v + 1


def other(v: Any) -> Any:
    return v + 1


DIFFERENT: dict[str, tuple[Callable[..., Any], ...]] = {
    "primitives": (jnp.sin, jnp.cos),
    "operands": (lambda v: v - v.T, lambda v: v.T - v),
    "results": (lambda v: (v + 1, v * 2), lambda v: (v * 2, v + 1), lambda v: v + 1),
    "literals": (lambda v: v * 2.0, lambda v: v * 3.0),
    "signs of zero": (lambda v: v * 0.0, lambda v: v * -0.0),
    "types": (lambda v: v.astype("int32"), lambda v: v.astype("int16")),
    "parameters": (lambda v: v.sum(0), lambda v: v.sum(1), lambda v: v.sum((0, 1))),
    "constants": (lambda v: v[:3, 0] * ONES, lambda v: v[:3, 0] * OTHERS),
    "constants in loops": (looped(ONES), looped(OTHERS)),
    "trips": (repeated(2), repeated(3)),
    "branches": (branched(jnp.sin, jnp.cos), branched(jnp.cos, jnp.sin)),
    "names": (jax.jit(one), jax.jit(other)),
    "layouts": (constrained("x"), constrained("y"), constrained(None, "x")),
    "precision": (lambda v: jnp.dot(v, v), lambda v: jnp.dot(v, v, precision="highest")),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_computes_something_else_has_another_digest(what: str) -> None:
    args = np.outer(V, V)
    found = [digest(function, args) for function in DIFFERENT[what]]
    assert len(set(found)) == len(found)
    assert found == [digest(function, args) for function in DIFFERENT[what]], "and the same one each time"


def test_types_of_arguments_count_weak_ones_too() -> None:
    assert len({digest(jnp.sin, arg) for arg in (1.0, np.float32(1), np.float16(1), V)}) == 4


def test_another_process_says_the_same(fresh_python) -> None:
    here: dict[str, Any] = {}
    exec(compile(STEP, "step", "exec"), here)
    done = fresh_python(STEP + "print(found)")
    assert done.stdout.split() == [here["found"]], done.stderr
    assert not is_of_this_process(here["found"])


def test_what_is_known_by_its_address_is_of_this_process() -> None:
    def called(v: Any) -> Any:
        return jax.pure_callback(lambda value: value, jax.ShapeDtypeStruct(v.shape, v.dtype), v)

    assert is_of_this_process(digest(called, V))
    assert is_of_this_process(digest(jax.jit(called), V)), "at any depth"
    assert not is_of_this_process(digest(jax.nn.relu, V)), "rules of derivatives are not what runs"


def test_a_jaxpr_that_many_equations_call_is_read_once(monkeypatch) -> None:
    layer, text, read = jax.jit(lambda v: jnp.sin(v) * 2), JaxprDigests._text, list[Any]()

    def counted(self: JaxprDigests, jaxpr: Any, consts: Any) -> str:
        read.append(jaxpr)
        return text(self, jaxpr, consts)

    monkeypatch.setattr(JaxprDigests, "_text", counted)
    digest(lambda v: layer(layer(layer(v))), V)
    assert len(read) == 2
