"""Host callbacks in computations on several devices: what they return is the same on every device that reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import pathways_nb as pw
from tests.support.closeness import close

x = np.arange(16, dtype=np.float32)


def doubled(v):
    return jax.pure_callback(lambda t: np.asarray(t) * 2, jax.ShapeDtypeStruct(v.shape, v.dtype), v)


def doubled_in_order(v):
    return io_callback(lambda t: np.asarray(t) * 2, jax.ShapeDtypeStruct(v.shape, v.dtype), v, ordered=True)


def two_of_one_callback(v):
    struct = jax.ShapeDtypeStruct(v.shape, v.dtype)
    return jax.pure_callback(lambda t: (np.asarray(t) * 2, np.asarray(t) * 3), (struct, struct), v)


BODIES = {
    "pure": doubled,
    "io": lambda v: io_callback(lambda t: np.asarray(t) * 2, jax.ShapeDtypeStruct(v.shape, v.dtype), v),
    "io in order": doubled_in_order,
    "in the middle": lambda v: doubled(v * 1.5) + v,
    "within jit": lambda v: jax.jit(doubled)(v),
    "twice": lambda v: doubled(jax.jit(doubled)(v)),
    "within scan": lambda v: jax.lax.scan(lambda carry, row: (carry, doubled(row)), 0.0, v)[1],
    "within cond": lambda v: jax.lax.cond(v.sum() > 0, doubled, lambda t: t, v),
    "several outputs": lambda v: (doubled(v), v * 3, jnp.sin(doubled(v))),
    "several of one": two_of_one_callback,
    "one of several": lambda v: two_of_one_callback(v)[1],
    "a constant": lambda v: (
        jax.pure_callback(lambda: np.arange(16, dtype=np.float32), jax.ShapeDtypeStruct((16,), np.float32)) + v * 0
    ),
    "transposed": lambda v: doubled(v.reshape(4, 4)).T.reshape(16),
    "debug print": lambda v: (jax.debug.callback(lambda t: None, v), v * 2)[1],
}


@pytest.fixture(scope="module")
def readers():
    """Computations that read a value in halves, in quarters at another place of the same size or of another one."""
    return {
        count: pw.jit(
            lambda v: v + 1, on=pw.virtual_slice(count, island=island), in_shardings=pw.P("x"), out_shardings=pw.P("x")
        )
        for count, island in ((2, 0), (4, 1))
    }


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("given", [pw.P(), pw.P("x")], ids=["whole", "halves"])
def test_what_a_callback_returns_is_read_in_parts_elsewhere(controller, readers, kind, given) -> None:
    body = BODIES[kind]
    calls = pw.jit(body, on=pw.virtual_slice(2, island=0), in_shardings=given)
    program = pw.program(lambda v: [reads(t) for t in jax.tree.leaves(calls(v)) for reads in readers.values()])
    expected = [np.asarray(t) + 1 for t in jax.tree.leaves(body(jnp.asarray(x))) for _ in readers]
    close(program(x), expected)
    loose = calls(x)
    close(loose, jax.tree.map(np.asarray, body(jnp.asarray(x))))
    close([reads(t) for t in jax.tree.leaves(loose) for reads in readers.values()], expected)


def test_a_callback_in_per_shard_code_stays_in_parts(controller, readers) -> None:
    place = pw.virtual_slice(2, island=0)
    calls = pw.shard_map(doubled, on=place, in_specs=pw.P("x"), out_specs=pw.P("x"))
    made = calls(x)
    assert made.sharding.spec == pw.P("x")
    close(readers[2](made), x * 2 + 1)


def test_a_fused_callback_is_read_in_parts(controller, readers) -> None:
    """Ordinary operations and computations of one place in one launch."""
    place = pw.virtual_slice(2, island=0)
    calls = pw.jit(doubled, on=place)
    adds = pw.jit(lambda v: v + 1, on=place, in_shardings=pw.P("x"))
    program = pw.program(lambda v: (adds(calls(v)), calls(v) * 3, calls(v)), fuse=True)
    close(program(x), (x * 2 + 1, x * 6, x * 2))


def test_a_program_of_ordinary_operations_with_a_callback(controller, readers) -> None:
    halves = pw.put(x, on=pw.virtual_slice(2, island=0), shardings=pw.P("x"))
    close(pw.program(lambda v: doubled(v))(halves), x * 2)


def test_a_callback_with_effects_is_called_once_a_call(controller, readers) -> None:
    called: list[float] = []

    def note(t):
        called.append(float(np.asarray(t).sum()))
        return np.asarray(t)

    calls = pw.jit(
        lambda v: io_callback(note, jax.ShapeDtypeStruct(v.shape, v.dtype), v), on=pw.virtual_slice(2, island=0)
    )
    for number in range(1, 4):
        close(readers[2](calls(x * number)), x * number + 1)
    assert called == [120.0, 240.0, 360.0]


def test_keys_made_of_what_a_callback_returns(controller, readers) -> None:
    def keys(v):
        struct = jax.ShapeDtypeStruct((4, 2), np.uint32)
        return jax.random.wrap_key_data(jax.pure_callback(lambda t: np.arange(8, dtype="u4").reshape(4, 2), struct, v))

    place = pw.virtual_slice(2, island=0)
    makes = pw.jit(keys, on=place)
    draws = pw.jit(jax.vmap(jax.random.normal), on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    close(draws(makes(x)), np.asarray(jax.vmap(jax.random.normal)(keys(x))))


RAISING = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    import pathways_nb as pw
    from jax.experimental import io_callback

    pw.attach("cpu", islands=1, devices_per_island=4)
    four, x = pw.virtual_slice(4), np.arange(8, dtype=np.float32)

    def checked(values):
        if values.min() < 0 or values.shape == (4,):
            raise ValueError(f"{values.min():.0f} is negative")
        return values if values.max() < 100 else np.float32(0)

    def pure(values):
        return jax.pure_callback(checked, values, values)

    def in_a_loop(values):
        step = lambda total, _: (jax.lax.psum(io_callback(checked, total, total), "x") / 4, None)
        return jax.lax.scan(step, values, length=2)[0]

    def printed(values):
        jax.debug.callback(checked, values)
        return jax.lax.psum(values, "x")

    spread = dict(on=four, in_specs=pw.P("x"), out_specs=pw.P(), check_vma=False)
    calls = {
        "whole": pw.jit(lambda v: pure(v).sum() + v.sum(), on=four, in_shardings=pw.P("x"), out_shardings=pw.P()),
        "parts": pw.shard_map(lambda v: jax.lax.psum(pure(v), "x"), **spread),
        "loop": pw.shard_map(in_a_loop, **spread),
        "printed": pw.shard_map(printed, **spread),
    }
    after = pw.jit(lambda v: v + 1, on=four, in_shardings=pw.P())

    def reason(future):
        try:
            return "no error, " + str(future.result())
        except pw.NodeError as error:
            return str(error).split(": ", 1)[1]

    for name, call in calls.items():
        right, wrong = x + 1, np.where(x == 7, np.float32(-5), x)  # on the last device alone
        expected = np.asarray(call(right).result())
        print(name, reason(call(wrong)), "|", reason(after(call(wrong))))
        assert np.array_equal(call(right).result(), expected)
    alone = pw.shard_map(pure, on=four, in_specs=pw.P("x"), out_specs=pw.P("x"), check_vma=False)
    together = pw.shard_map(lambda v: jax.lax.psum(v, "x"), **spread)
    print("later", reason(pw.program(lambda v: together(alone(v)))(wrong)), "|", reason(together(alone(wrong))))
    print(reason(calls["parts"](np.where(x == 7, np.float32(100), x))))
"""
REASON = "ValueError: -5 is negative (in a host callback)"


def test_a_callback_that_raises_before_a_collective_is_an_error_of_its_node(fresh_python: Callable[..., Any]) -> None:
    """XLA ended the process after 40 seconds, in which the other devices waited."""
    done = fresh_python(RAISING)
    *errors, shape = done.stdout.splitlines() or [""]
    assert errors == [f"{name} {REASON} | {REASON}" for name in ("whole", "parts", "loop", "printed", "later")], (
        done.stderr[-3000:]
    )
    assert shape == (
        "UsageError: a host callback returned float32[], but its result_shape_dtypes declare float32[2]. Return arrays "
        "of the declared shapes and types. (in a host callback)"
    )
