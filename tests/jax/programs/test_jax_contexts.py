"""JAX's contexts: every call gives what ``jax.jit`` gives under those of its line, whatever was made before it or after."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental.xla_metadata import set_xla_metadata

import pathways_nb as pw
from pathways_nb.errors import NodeError, UsageError
from pathways_nb.program import jax_contexts
from tests.support.closeness import close
from tests.support.hosts_in_process import hosts_in_process
from tests.support.pipelines import mlp, mlp_model, squared

V = np.linspace(0.1, 3.2, 16, dtype=np.float32)
WIDE = np.arange(16) + 2**40
ROWS = pw.P("x")
SCALE = jax.make_user_context(1.0)

Enter = Callable[[], AbstractContextManager[Any]]


def function(v: Any) -> Any:
    """Values and dtypes that depend on most of JAX's contexts."""
    drawn = jax.random.normal(jax.random.key(3), v.shape)
    counted = jnp.arange(v.size) + jnp.asarray(2**33 if jax.config.jax_enable_x64 else 1)
    made = jax.random.key_data(jax.random.key(1))
    square = v.reshape(4, -1)
    return v * SCALE.value + drawn, counted, made, square @ square.T, jnp.ones(2) * jnp.linspace(0, 1, 2)


def loss(params: Any, x: Any) -> Any:
    return jnp.mean((x @ params["w"] * SCALE.value + jax.random.normal(jax.random.key(3), (4,))) ** 2)


CONTEXTS: dict[str, Enter] = {
    "threefry_partitionable": lambda: jax.threefry_partitionable(False),
    "enable_x64": lambda: jax.enable_x64(True),
    "default_matmul_precision": lambda: jax.default_matmul_precision("highest"),
    "default_prng_impl": lambda: jax.default_prng_impl("rbg"),
    "default_device": lambda: jax.default_device(jax.devices()[0]),
    "debug_nans": lambda: jax.debug_nans(True),
    "checking_leaks": jax.checking_leaks,
    "transfer_guard": lambda: jax.transfer_guard("log"),
    "disable_jit": jax.disable_jit,
    "set_mesh": lambda: jax.set_mesh(jax.make_mesh((1,), ("other",))),
    "set_xla_metadata": lambda: set_xla_metadata(kind="test"),
    "user's own": lambda: SCALE(2.5),
}


@contextlib.contextmanager
def several() -> Iterator[None]:
    with jax.enable_x64(True), SCALE(0.5), jax.threefry_partitionable(False), jax.default_prng_impl("rbg"):
        yield


CONTEXTS["several"] = several


def same(found: Any, expected: Any) -> None:
    """Assert that values are close and dtypes equal."""
    found = pw.get(found)
    close(found, expected)
    assert jax.tree.map(lambda x: np.asarray(x).dtype, found) == jax.tree.map(lambda x: np.asarray(x).dtype, expected)


def plain(fn: Callable[..., Any], *args: Any) -> Any:
    """What a fresh ``jax.jit`` gives here: JAX's own cache does not know ``jax.default_prng_impl``."""
    return jax.tree.map(np.asarray, jax.jit(lambda *args: fn(*args))(*args))


def computation(place: pw.VirtualSlice, fn: Callable[..., Any] = function) -> Any:
    return pw.jit(lambda *args: fn(*args), on=place, in_shardings=ROWS)


@pytest.mark.parametrize("form", ["call", "program", "record"])
@pytest.mark.parametrize("name", CONTEXTS)
def test_a_warm_call_under_another_context_and_back(left, name: str, form: str) -> None:
    f, enter, outside = computation(left), CONTEXTS[name], plain(function, V)
    run = pw.program(lambda v: f(v)) if form == "program" else f
    with pw.record() if form == "record" else contextlib.nullcontext():
        same(run(V), outside)
        with enter():
            inside = plain(function, V)
            same(run(V), inside)
        same(run(V), outside)


@pytest.mark.parametrize("name", CONTEXTS)
def test_gathered_calls_are_traced_at_their_lines(left, name: str) -> None:
    """The first call of each, and two contexts in one record; what is dispatched at the end runs as its line says."""
    f, g, enter, outside = computation(left), computation(left), CONTEXTS[name], plain(function, V)
    with pw.record():
        with enter():
            inside = plain(function, V)
            found = [f(V), g(V)]
        found += [f(V), g(V)]
        with enter():
            found.append(f(V))
    for one, expected in zip(found, [inside, inside, outside, outside, inside], strict=True):
        same(one, expected)


def test_calls_under_equal_contexts_stay_one_program(left) -> None:
    plus_one, twice = pw.jit(lambda v: v + 1, on=left), pw.jit(lambda v: v * 2, on=left)
    with pw.record() as run:
        with jax.default_matmul_precision("highest"):
            one = plus_one(V)
        with jax.default_matmul_precision("highest"):
            two = twice(one)
    close(two, (V + 1) * 2)
    assert set(run.events.of_kind("compute")["program"].tolist()) == {"plus_one, twice"}


def test_nothing_is_prepared_again_under_contexts_that_were_seen(left) -> None:
    f = computation(left)
    for _ in range(2):
        with pw.record() as run:
            pw.wait(f(V))
            with jax.threefry_partitionable(False), jax.enable_x64(True):
                pw.wait(f(V))
    assert [len(run.events.of_kind(kind)) for kind in ("trace", "lower", "compile")] == [0, 0, 0]


def test_the_precision_stands_in_the_compiled_text(left) -> None:
    f = pw.program(computation(left, lambda v: v.reshape(4, 4) @ v.reshape(4, 4)), name="product")

    def text() -> str:
        return " ".join(one.as_text() for one in f.compiled(V).values())

    assert "highest" not in text()
    with jax.default_matmul_precision("highest"):
        assert "operand_precision={highest,highest}" in text()
    assert "highest" not in text()


def test_settings_of_the_compiler_count(left) -> None:
    """They change no text; JAX has them in the key of ``jax.jit``, too."""
    f = pw.program(computation(left, lambda v: v * 3), name="scaled")
    (one,) = f.compiled(V).values()
    with jax_contexts._managers["jax_optimization_level"]("O1"):
        (other,) = f.compiled(V).values()
    (again,) = f.compiled(V).values()
    assert other is not one
    assert again is one


@pytest.mark.parametrize("name", ["numpy_dtype_promotion", "numpy_rank_promotion"])
def test_what_jax_refuses_under_a_context_is_refused_after_a_warm_call(left, name: str) -> None:
    f = computation(left, lambda v: v + jnp.zeros((2, 16), jnp.int32))
    close(f(V), np.stack([V, V]))
    strict = jax.numpy_dtype_promotion("strict") if "dtype" in name else jax.numpy_rank_promotion("raise")
    with strict, pytest.raises((TypeError, ValueError), match="promotion"):
        f(V)
    with pw.record(), strict, pytest.raises((TypeError, ValueError), match="promotion"):
        f(V)  # at its line, not at the end of the record
    close(f(V), np.stack([V, V]))


def test_debug_nans_finds_the_node(left) -> None:
    f = computation(left, lambda v: jnp.log(v - 1))
    expected = np.asarray(jax.jit(lambda v: jnp.log(v - 1))(V))
    close(f(V), expected)
    with jax.debug_nans(True), pytest.raises(NodeError) as failed:
        pw.get(f(V))
    assert str(failed.value).endswith(
        "an output has nan. Look for the operation with jax.debug_nans under plain jax.jit"
    )
    assert "failed on left (island 0, devices 0–3)" in str(failed.value)
    close(f(V), expected)


def test_values_of_64_bits_go_everywhere(left, right) -> None:
    """Between islands, to another number of devices, through ``pw.put`` and host work, in and out of programs."""
    twice = pw.jit(lambda v: v * 2, on=left, in_shardings=ROWS, out_shardings=ROWS)
    more = pw.jit(lambda v: v + 1, on=pw.virtual_slice(2, island=1), in_shardings=ROWS, out_shardings=ROWS)
    with jax.enable_x64(True):
        on_host = pw.host(lambda v: v - 1, on=right, out=jax.ShapeDtypeStruct((16,), jnp.int64))
        same(more(twice(WIDE)), WIDE * 2 + 1)
        same(more(twice(pw.put(WIDE, left, ROWS))), WIDE * 2 + 1)
        same(pw.program(lambda v: more(on_host(twice(v))).sum())(WIDE), (WIDE * 2).sum())
        same(pw.program(jax.grad(lambda v: more(twice(v)).sum()))(np.linspace(0, 1, 16)), np.full(16, 2.0))
        same(pw.jit(lambda v: v * 2, on=left)(2**40), np.asarray(2**41))
        with pw.record():
            late = more(twice(WIDE))
    same(late, WIDE * 2 + 1)


def test_an_array_of_64_bits_is_refused_where_it_would_be_narrowed(left) -> None:
    f = computation(left, lambda v: v + 1)
    with jax.enable_x64(True):
        made, array = f(WIDE), jnp.asarray(WIDE)
    for value, call in ((made, f), (array, f), (made, pw.program(lambda v: f(v), name="<lambda>"))):
        with pytest.raises(UsageError) as refused:
            call(value)
        assert str(refused.value).endswith(
            "is int64[16], and JAX holds int32 at this line, where jax_enable_x64 is off. Call it in "
            "`with jax.enable_x64(True):`, or convert the array there."
        )
    same(made, WIDE + 1)


def test_a_context_inside_a_program_holds_for_what_is_in_it(left, right) -> None:
    f, g = computation(left, lambda v: v * SCALE.value), computation(right, lambda v: v * SCALE.value)

    @pw.program
    def step(v: Any) -> Any:
        with SCALE(3.0):
            v = f(v)
        return g(v) + f(v)

    close(step(V), V * 6)
    with SCALE(2.0):
        close(step(V), V * 12)
    close(step(V), V * 6)


def test_gradients_are_made_under_the_contexts_of_the_call(left, right) -> None:
    first, second = computation(left, lambda v: jnp.sin(v) * SCALE.value), computation(right, lambda v: (v**2).sum())
    step, whole = pw.program(jax.grad(lambda v: second(first(v)))), jax.grad(lambda v: (jnp.sin(v) ** 2).sum())
    close(step(V), whole(V))
    with SCALE(2.0), jax.enable_x64(True):
        same(step(V.astype(np.float64)), 4 * np.asarray(whole(jnp.asarray(V, jnp.float64))))
    close(step(V), whole(V))


@pytest.mark.parametrize("name", ["threefry_partitionable", "several"])
def test_steps_of_fsdp(left, name: str) -> None:
    params, x, optimizer = {"w": np.eye(8, 4, dtype=np.float32)}, np.ones((8, 8), np.float32), optax.sgd(0.1)
    step = pw.fsdp(loss, params, on=left, optimizer=optimizer)
    kept, state = step.init(params)
    graph = step.graph(x)
    expected = plain(jax.value_and_grad(loss), params, x)
    close(step.value_and_grad(kept, x), expected)
    with CONTEXTS[name]():
        inside = plain(jax.value_and_grad(loss), params, x)
        close(step.value_and_grad(kept, x), inside)
        assert step.graph(x) is not graph
        close(step(kept, state, x)[2], inside[0])
    close(step.value_and_grad(kept, x), expected)
    assert step.traced(x) is step.traced(x), "traced once"


def test_stages_of_a_pipeline(left, right) -> None:
    def noisy(params: Any, x: Any, key: Any) -> Any:
        return mlp(params, x) * SCALE.value + jax.random.normal(key, x.shape)

    pipe = pw.pipeline([noisy, noisy], on=[left, right], schedule="1f1b", microbatches=2, loss=squared)
    batch, value_and_grad = (*mlp_model(2), jax.random.key(3)), jax.value_and_grad(lambda *args: pipe.composed(*args))
    expected = plain(value_and_grad, *batch)
    close(pipe.value_and_grad(*batch), expected)
    with several():
        close(pipe.value_and_grad(*batch), plain(value_and_grad, *batch))
    close(pipe.value_and_grad(*batch), expected)


def test_every_thread_has_contexts_of_its_own(controller, left) -> None:
    f, found, failed = computation(left), dict[str, list[Any]](), list[BaseException]()
    chosen = ["threefry_partitionable", "enable_x64", "user's own"]
    expected = {"": plain(function, V)}
    for name in chosen:
        with CONTEXTS[name]():
            expected[name] = plain(function, V)
    together = threading.Barrier(len(expected), timeout=120)

    def calls(name: str) -> None:
        try:
            with CONTEXTS[name]() if name else contextlib.nullcontext():
                together.wait()
                found[name] = [pw.get(f(V)) for _ in range(6)]
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=calls, args=(name,)) for name in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for name, results in found.items():
        for one in results:
            same(one, expected[name])


def test_what_goes_to_hosts(watchdog: None) -> None:
    with hosts_in_process(2, 4, 4):
        near, far = pw.virtual_slice(4, island=0), pw.virtual_slice(4, island=1)
        f, g = computation(near), pw.jit(lambda v: v + 1, on=far, in_shardings=ROWS, out_shardings=ROWS)
        whole = pw.jit(lambda v: v * 2, on=near, in_shardings=ROWS, out_shardings=ROWS)
        outside = plain(function, V)
        same(f(V), outside)
        for name in ("threefry_partitionable", "enable_x64", "several"):
            with pw.record(), CONTEXTS[name]():
                inside, found = plain(function, V), f(V)
            same(found, inside)
            same(f(V), outside)
        with jax.enable_x64(True):
            same(g(whole(WIDE)), WIDE * 2 + 1)
            same(g(pw.put(WIDE, near, ROWS)), WIDE + 1)
            same(pw.program(lambda v: g(whole(v)).sum())(WIDE), (WIDE * 2 + 1).sum())


def test_simulated_calls_have_the_dtypes_of_their_line() -> None:
    pw.attach("sim", chip="tpu_v5p", islands=1, devices_per_island=4)
    f = computation(pw.virtual_slice(4))
    assert f(V)[1].dtype == np.int32
    with pw.record(), jax.enable_x64(True):
        assert f(V)[1].dtype == np.int64
    assert f(V)[1].dtype == np.int32


def test_jax_without_a_readable_tuple_tells_public_contexts_apart(monkeypatch) -> None:
    monkeypatch.setattr("pathways_nb.util.fallbacks._told", set())
    monkeypatch.delattr("jax._src.config.trace_context_names", raising=False)
    with pytest.warns(RuntimeWarning, match="contexts of this version of JAX cannot be read"):
        found = jax_contexts._settings()
    here = found.read()
    assert len(here) == len(found.names) == len(found.managers)
    assert {"jax_enable_x64", "jax_threefry_partitionable", "jax_default_matmul_precision"} <= set(found.names)
    for name in ("threefry_partitionable", "enable_x64", "default_matmul_precision", "default_prng_impl"):
        with CONTEXTS[name]():
            inside = found.read()
        assert inside != here
        with contextlib.ExitStack() as stack:
            for setting, value in zip(found.names, inside, strict=True):
                stack.enter_context(found.managers[setting](value))
            assert found.read() == inside
    assert found.read() == here


def test_a_context_that_an_interrupt_left_is_put_back(monkeypatch) -> None:
    """In a thread of its own, which keeps what is put back."""
    with jax.enable_x64(True):
        wide = jax_contexts.current()
    whole, seen, interrupts = jax_contexts._managers["jax_enable_x64"], list[Any](), iter([True])

    def interrupted(value: Any) -> Any:
        manager = whole(value)
        if next(interrupts, False):
            manager.__enter__()
            raise KeyboardInterrupt
        return manager

    def work() -> None:
        here = jax_contexts.current()
        try:
            with jax_contexts.entered(wide):
                seen.append("never reached")
        except KeyboardInterrupt:
            seen.append(jax_contexts.current() is here)

    monkeypatch.setitem(jax_contexts._managers, "jax_enable_x64", interrupted)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]


def test_contexts_are_one_object_while_they_are_equal() -> None:
    here = jax_contexts.current()
    with jax.enable_x64(True):
        wide = jax_contexts.current()
        with jax_contexts.entered(here):
            assert jax_contexts.current() is here
            assert not jax.config.jax_enable_x64
        assert jax_contexts.current() is wide
    assert jax_contexts.current() is here
    assert wide is not here
    with jax_contexts.entered(wide):
        assert jax_contexts.current() is wide


def test_a_thread_takes_on_contexts_until_it_is_given_others() -> None:
    here, seen = jax_contexts.current(), []
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        there = jax_contexts.current()

    def work() -> None:
        for contexts in (here, there, here, there, there):
            jax_contexts.adopt(contexts)
            seen.append(jax_contexts.current() is contexts)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True] * 5
