"""Replay: traced once, compiled once, and never mixed up with what only looks the same; effects and JAX's own caches."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from tests.support.closeness import close
from tests.support.computations import on, v


def test_traced_once_per_signature_and_replayed(a) -> None:
    traces = []

    @functools.partial(pw.program, static_argnames="n")
    def f(v, n=1):
        traces.append(n)
        return a(v) * n

    for _ in range(3):
        f(v), f(v=v), f(v, n=1)
    assert traces == [1] * len(traces)
    assert len(traces) <= 2, "left-out defaults may be a signature of their own"
    traces.clear()
    f(v, n=2), f(v.astype(np.int32)), f(np.arange(4, dtype=np.float32)), f(a(v))
    assert traces == [2, 1, 1]


@pytest.mark.parametrize("name", ["trace", "lower", "compile"])
def test_a_second_call_does_no_preparation(controller, a, b, name) -> None:
    f = pw.program(lambda v: b(a(v)) * 3)
    f(v)
    with pw.record() as run:
        close(f(v + 1), ((v + 1) * 2 + 1) * 3)
    assert len(run.events.of_kind(name)) == 0
    assert len(run.events.of_kind("compute")) == 3


def test_redefining_the_same_cell_compiles_nothing(controller, left, right) -> None:
    unique = 17.25

    def cell():
        a = pw.jit(lambda v: jnp.tanh(v) * unique, on=left, in_shardings=pw.P("x"))
        b = pw.jit(lambda v: jnp.cos(v) * unique, on=pw.virtual_slice(4, island=1), in_shardings=pw.P("x"))
        with pw.record() as run:
            close(pw.program(lambda v: b(a(v)))(v), np.cos(np.tanh(v) * unique) * unique)
        return len(run.events.of_kind("compile"))

    assert [cell(), cell(), cell()] == [2, 0, 0]


def test_attaching_again_and_resetting_compile_nothing(controller) -> None:
    """Clients go back to a shelf; executables are found by content and devices."""
    scale = on(pw.virtual_slice(4, island=0), lambda v: v * 123.5)
    f = pw.program(lambda v: scale(v))
    close(f(v), v * 123.5)
    pw.reset()
    with pw.record() as run:
        close(f(v), v * 123.5)
    assert len(run.events.of_kind("compile")) == 0


def test_a_repeated_call_inside_a_program_is_compiled_once(controller, left) -> None:
    layer = on(left, lambda v: jnp.sin(v) + 41.5)

    @pw.program
    def deep(v):
        for _ in range(10):
            v = layer(v)
        return v

    with pw.record() as run:
        deep(v).result()
    assert len(run.events.of_kind("compile")) == 1
    assert len(run.events.of_kind("compute")) == 10


# ---- jax.jit and effects


def test_a_users_jit_around_a_computation_is_shared_by_programs(a, b) -> None:
    shared = jax.jit(lambda v: a(v) * 3)
    close(pw.program(lambda v: b(shared(v)))(v), v * 6 + 1)
    close(pw.program(lambda v: b(shared(v)) + 1)(v), v * 6 + 2)


def test_a_checkpointed_function_is_shared_by_programs(a, b) -> None:
    shared = jax.checkpoint(lambda v: a(v) * 3)
    close(pw.program(lambda v: b(shared(v)))(v), v * 6 + 1)
    close(pw.program(jax.grad(lambda v: jnp.sum(b(shared(v)))))(v), np.full(8, 6.0))


def prints(capsys) -> list[str]:
    jax.effects_barrier()
    return capsys.readouterr().out.splitlines()


def test_debug_print_inside_a_computation_runs_exactly_once_per_call(left, capsys, quiet, controller) -> None:
    @pw.jit(on=left)
    def f(v):
        jax.debug.print("inside {}", v[1])
        return v * 2

    for _ in range(3):
        f(v).result()
    quiet(controller)
    assert prints(capsys) == ["inside 1.0"] * 3


def test_debug_print_between_computations_runs_exactly_once(a, b, capsys, quiet, controller) -> None:
    @pw.program
    def f(v):
        y = a(v)
        jax.debug.print("between {}", y[1])
        jax.debug.print("argument {}", v[2])
        return b(y)

    close(f(v), v * 2 + 1)
    quiet(controller)
    assert sorted(prints(capsys)) == ["argument 2.0", "between 2.0"]


def test_a_print_alone_runs(left, capsys, quiet, controller) -> None:
    @pw.program
    def f(v):
        show(v)

    show = pw.jit(lambda v: jax.debug.print("alone {}", v[3]), on=left)
    assert f(v) is None
    quiet(controller)
    assert prints(capsys) == ["alone 3.0"]


def test_a_changed_print_is_a_changed_program(left, capsys, quiet, controller) -> None:
    for text in ("first {}", "second {}"):
        pw.jit(lambda v: (jax.debug.print(text, v[0]), v)[1], on=left)(v).result()
    quiet(controller)
    assert prints(capsys) == ["first 0.0", "second 0.0"]


def test_a_changed_callback_is_a_changed_program(left) -> None:
    struct = jax.ShapeDtypeStruct((8,), np.float32)
    for number in (1.0, 2.0):
        f = pw.jit(lambda v: jax.pure_callback(lambda x, n=number: x + np.float32(n), struct, v), on=left)
        close(f(v), v + number)


def test_custom_vjp_with_computations_inside(a, b) -> None:
    @jax.custom_vjp
    def h(v):
        return b(a(v))

    h.defvjp(lambda v: (b(a(v)), v), lambda saved, g: (a(g) * saved,))
    close(pw.program(h)(v), v * 2 + 1)
    close(pw.program(jax.grad(lambda v: jnp.sum(h(v))))(v), 2 * v)


def test_custom_jvp_with_computations_inside(a, b) -> None:
    @jax.custom_jvp
    def h(v):
        return b(a(v))

    h.defjvp(lambda primals, tangents: (b(a(primals[0])), a(tangents[0]) * 5))
    close(pw.program(jax.grad(lambda v: jnp.sum(h(v))))(v), np.full(8, 10.0))


def test_a_loop_cannot_hold_a_computation(a) -> None:
    @pw.program
    def f(v):
        return jax.lax.fori_loop(0, 3, lambda i, x: a(x), v)

    with pytest.raises(
        pw.UsageError, match=r"is called inside jax.lax.\w+ at test_trace_cache.py:\d+: a computation is a node"
    ):
        f(v)
    close(pw.program(lambda v: a(a(a(v))))(v), v * 8)


def test_cond_on_a_traced_value_inside_a_computation(left) -> None:
    f = pw.jit(lambda v: jax.lax.cond(v.sum() > 0, lambda x: x, lambda x: -x, v), on=left)
    close(f(v), v)
    close(f(-v), v)


def test_a_users_jit_outlives_the_places_it_was_traced_with(controller) -> None:
    """A cell that defines places is run again; a helper of another cell, traced by JAX with the old ones, is not."""
    import gc

    cell: dict[str, object] = {}
    helper = jax.jit(lambda v: cell["a"](v) * 3)  # type: ignore[operator]
    for _ in range(2):
        cell["a"] = on(pw.virtual_slice(2), lambda v: v * 2)
        gc.collect()
        close(pw.program(lambda v: helper(v))(v), v * 6)


def test_typed_keys_and_bare_numbers_do_not_share_an_executable(left) -> None:
    """Both lower to the same text; so do keys of two implementations."""
    sample = pw.jit(lambda k: jax.random.normal(k, (4,)), on=left)
    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        close(sample(key), jax.random.normal(key, (4,)), 1e-6)
    data = np.arange(4, dtype=np.uint32)
    for impl in ("rbg", "unsafe_rbg"):
        y = pw.jit(lambda k, impl=impl: jax.random.wrap_key_data(k, impl=impl), on=left)(data)
        assert y.dtype == y.array().dtype == jax.random.wrap_key_data(data, impl=impl).dtype


def test_static_values_that_are_equal_and_of_other_types_are_other_programs(left) -> None:
    times = pw.jit(lambda x, n: x * n, on=left, static_argnames="n")
    x = np.arange(4, dtype=np.int32)
    assert [times(x, n=n).result().dtype for n in (1, 1.0, True)] == [np.int32, np.float32, np.int32]
    choose = pw.program(lambda x, flag: times(x, n=2) if flag is True else x, static_argnums=1)
    np.testing.assert_array_equal(choose(x, 1).result(), x)
    np.testing.assert_array_equal(choose(x, True).result(), 2 * x)
