"""``jax.checkpoint`` inside loops of a loss: XLA ended the process over the barriers of small ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw

IN_LOOPS = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    import pathways_nb as pw

    pw.attach("cpu", islands=1, devices_per_island=2)
    made = np.random.default_rng(0)
    w, x = made.normal(size=(4, 4)).astype(np.float32), made.normal(size=(8, 4)).astype(np.float32)

    def of_row(w):
        return jax.checkpoint(lambda row: jnp.sum(jnp.tanh(row @ w) ** 2))

    def scanned(w, x):
        return jax.lax.scan(lambda carry, row: (carry, jax.jit(of_row(w))(row)), 0.0, x)[1].mean()

    def branched(w, x):
        return jax.lax.map(lambda row: jax.lax.cond(row[0] > 0, of_row(w), jnp.sum, row), x).mean()

    def nested(w, x):
        inner = jax.checkpoint(lambda value: jnp.tanh(value * w[0, 0]))
        return jax.lax.map(lambda row: jax.lax.map(inner, row).sum(), x).mean()

    def layers(w, x):
        body = jax.checkpoint(lambda h, layer: (jnp.tanh(h * layer), None))
        return jax.lax.map(lambda row: jax.lax.scan(body, row, w)[0].sum(), x).mean()

    for loss in (lambda w, x: jax.lax.map(of_row(w), x).mean(), scanned, branched, nested, layers):
        step = pw.fsdp(loss, w, on=pw.virtual_slice(2))
        found, wanted = pw.get(step.value_and_grad(step.init(w), x)), jax.value_and_grad(loss)(w, x)
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
        np.testing.assert_allclose(found[1], wanted[1], rtol=1e-4, atol=1e-6)
    print("all right")
"""


def test_checkpoints_in_small_loops_do_not_end_the_process(fresh_python: Callable[..., Any]) -> None:
    done = fresh_python(IN_LOOPS)
    assert done.stdout == "all right\n", done.stderr[-2000:]


@pytest.mark.parametrize("scanned", [False, True])
def test_a_step_keeps_the_barriers_of_checkpoints(left: pw.VirtualSlice, scanned: bool) -> None:
    def layer(h: Any, w: Any) -> tuple[Any, None]:
        return jnp.tanh(h @ w), None

    def loss(params: Any, x: Any) -> jax.Array:
        body = jax.checkpoint(layer)
        h = jax.lax.scan(body, x, params)[0] if scanned else body(body(x, params[0])[0], params[1])[0]
        return jnp.mean(h**2)

    params, x = np.full((2, 64, 64), 0.1, np.float32), np.ones((8, 64), np.float32)
    step = pw.fsdp(loss, params, on=left, mode="ddp")
    call = step._program("value_and_grad", None, 1)
    text = call.compiled(params, x)[call.name].as_text()
    assert len(re.findall(r"opt-barrier\(", text)) == (1 if scanned else 2)
