"""Host work (``pw.host``): a node like any other, called once for each call of its program, with NumPy's own values."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from tests.support.closeness import close
from tests.support.computations import names, on, v

F8 = jax.ShapeDtypeStruct((8,), np.float32)
WHOLE = jax.ShapeDtypeStruct((), np.int32)


def counting(place: pw.VirtualSlice, **options: Any) -> tuple[pw.HostFunction, list[int]]:
    """A host function that returns 0, 1, 2, … in every element, and the list of its calls."""
    calls: list[int] = []

    @pw.host(on=place, out=F8, **options)
    def load() -> np.ndarray:
        calls.append(len(calls))
        return np.full(8, calls[-1], np.float32)

    return load, calls


def test_a_host_node_feeds_a_computation_and_is_called_once_for_each_call(left, a, b) -> None:
    load, calls = counting(left)
    step = pw.program(lambda: b(a(load())))
    graph = step.graph()
    assert calls == []  # tracing calls nothing
    assert names(graph) == ["load@left", "double@left", "increment@right"]
    assert [node.kind for node in graph.nodes] == ["host", "computation", "computation", "result"]
    assert "test_host_work.py" in graph.nodes[0].line
    results = [step() for _ in range(5)]
    for number, result in enumerate(results):
        close(result, np.full(8, number * 2.0 + 1))
    assert calls == list(range(5))


def test_arguments_come_from_anywhere(left, right, a) -> None:
    """From Python, from devices of both islands, from other host nodes, and as constants."""
    seen: list[Any] = []

    @pw.host(on=right, out={"sum": F8, "count": WHOLE})
    def gather(x, y, z, *, scale):
        seen.append((x, y, z, scale))
        return {"sum": (x + y["it"] + z) * scale, "count": 7}

    load, _ = counting(right)
    other = pw.jit(lambda s, n: s * n, on=right)

    @pw.program
    def step(x, n):
        made = gather(a(x), {"it": n * jnp.ones(8)}, load(), scale=np.float32(3))
        return other(made["sum"], made["count"]), made["count"]

    y, count = step(v, np.float32(2))
    close(y, (v * 2 + 2 + 0) * 3 * 7)
    assert int(count) == 7
    assert all(type(leaf) is np.ndarray and not leaf.flags.writeable for leaf in jax.tree.leaves(seen)[:3])
    put = pw.put(v, on=left, shardings=pw.P("x"))
    close(step(put, np.float32(1))[0], (v * 2 + 1 + 1) * 3 * 7)


def test_an_argument_is_read_from_python_from_devices_and_from_a_future(left, a) -> None:
    negate = pw.host(lambda x: -x, on=left, out=F8)
    step = pw.program(lambda x: (negate(x), a(x)))
    for x in (v, jnp.asarray(v), a(v / 2), pw.put(v, on=left, shardings=pw.P("x"))):
        first, second = step(x)
        close(first, -v)
        close(second, v * 2)


def test_an_output_is_laid_out_as_declared_else_as_its_reader_wants_it_else_replicated(left, right) -> None:
    load, _ = counting(left)
    split, _ = counting(left, shardings=pw.P("x"))
    sharded, whole = on(left, lambda x: x + 1), pw.jit(lambda x: x + 1, on=left)
    assert pw.program(lambda: load())().sharding.spec == pw.P()
    assert pw.program(lambda: split())().sharding.spec == pw.P("x")
    assert pw.program(lambda: (lambda x: (sharded(x), x))(load()))()[1].sharding.spec == pw.P("x")
    assert pw.program(lambda: (lambda x: (whole(x), x))(load()))()[1].sharding.spec == pw.P()
    close(pw.program(lambda: on(right, lambda x: x + 1)(load()))(), np.full(8, 4.0))


def test_outside_a_program_it_returns_a_future(left, a) -> None:
    load, calls = counting(left)
    close(load(), np.zeros(8))
    with pw.record():
        y = a(load())
    close(y, np.full(8, 2.0))
    assert calls == [0, 1]


def test_a_function_without_outputs_is_called_too(controller, left, a) -> None:
    seen: list[float] = []

    @pw.host(on=left)
    def note(x):
        seen.append(float(x[0]))

    @pw.program
    def step(x):
        y = a(x)
        note(y)
        return y

    for number in range(3):
        step(v + number)
    controller.wait_all()
    assert seen == [2.0 * (v[0] + number) for number in range(3)]


def test_a_buffer_that_the_function_uses_again_is_copied(left, a) -> None:
    buffer, numbers = np.zeros(8, np.float32), itertools.count()

    @pw.host(on=left, out=F8)
    def refill():
        buffer[:] = next(numbers)
        return buffer

    step = pw.program(lambda: a(refill()))
    for number, y in enumerate([step() for _ in range(20)]):
        close(y, np.full(8, 2.0 * number))


def test_donated_arguments_are_read_before_their_memory_is_taken_over(controller, left) -> None:
    seen: list[float] = []
    note = pw.host(lambda s: seen.append(float(s.sum())), on=left)
    add = pw.jit(lambda s: s + 1, on=left, donate_argnums=0)

    @pw.program(donate_argnums=0)
    def step(state):
        note(state)
        return add(state)

    state = pw.put(np.zeros(8, np.float32), on=left)
    for _ in range(10):
        state = step(state)
    close(state, np.full(8, 10.0))
    controller.wait_all()
    assert seen == [8.0 * number for number in range(10)]


def test_fused_programs_keep_host_nodes_apart(left, a) -> None:
    load, _ = counting(left)
    step = pw.program(lambda x: a(a(x) + load()), fuse=True)
    assert "host" in [node.kind for node in step.graph(v).nodes]
    close(step(v), (v * 2) * 2)
    close(step(v), (v * 2 + 1) * 2)


def test_gradients_treat_outputs_as_constants(left, a) -> None:
    load, calls = counting(left)

    def loss(w):
        return (a(w) * load()).sum()

    gradient = pw.program(jax.value_and_grad(loss))
    close(gradient(v)[1], np.zeros(8))
    value, slope = gradient(v)
    close(slope, np.full(8, 2.0))
    assert float(value) == (v * 2).sum()
    assert calls == [0, 1]


def test_integers_may_depend_on_what_is_differentiated(left, a) -> None:
    largest = pw.host(lambda x: int(np.argmax(x)), on=left, out=WHOLE)

    def loss(w):
        y = a(w)
        return y[largest(y)]

    close(pw.program(jax.grad(loss))(v), 2.0 * (np.arange(8) == 7))


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(pw.PathwaysError) as caught:
        pw.get(call())
    return str(caught.value)


def test_a_gradient_through_it_is_refused(left, a) -> None:
    scale = pw.host(lambda x: x, on=left, out=F8)
    said = refused(lambda: pw.program(jax.grad(lambda w: scale(a(w)).sum()))(v))
    assert "scale" in said
    assert "which JAX cannot differentiate" in said
    assert "jax.lax.stop_gradient(argument)" in said
    stopped = pw.program(jax.grad(lambda w: (scale(jax.lax.stop_gradient(a(w))) * w).sum()))
    close(stopped(v), v * 2)


def test_vmap_and_checkpoint_and_loops_over_it_are_refused(left, a) -> None:
    scale, (load, _) = pw.host(lambda x: x, on=left, out=jax.ShapeDtypeStruct((), np.float32)), counting(left)
    assert "jax.vmap would repeat it" in refused(lambda: pw.program(jax.vmap(lambda x: scale(x)))(v))
    again = jax.checkpoint(lambda w: (a(w) * load()).sum())
    assert "calls load, which is host work, inside jax.checkpoint" in refused(lambda: pw.program(jax.grad(again))(v))
    scan = pw.program(lambda x: jax.lax.scan(lambda c, _: (c + load(), None), x, None, length=2)[0])
    assert "load is called inside jax.lax.scan" in refused(lambda: scan(v))


def test_inside_a_computation_it_is_refused(left) -> None:
    load, _ = counting(left)
    loading = on(left, lambda x: x + load())
    said = refused(lambda: loading(v))
    assert "load is host work and is called inside the computation loading, which runs on devices" in said


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (np.zeros(4, np.float32), "output is float32[4], and out= declares float32[8]"),
        (np.zeros(8, np.float64), "output is float64[8], and out= declares float32[8]"),
        ((np.zeros(8, np.float32),) * 2, "returned a tuple of 2 outputs, and out= declares float32[8]"),
        (None, "returned nothing, and out= declares float32[8]"),
    ],
    ids=["shape", "dtype", "number", "nothing"],
)
def test_what_is_not_as_declared_is_refused(left, a, returned, says) -> None:
    wrong = pw.host(lambda: returned, on=left, out=F8)
    said = refused(lambda: pw.program(lambda: a(wrong()))())
    assert says in said
    assert "failed on left (island 0, its host)" in said


def test_wrong_declarations_are_refused(left) -> None:
    assert "output['x'] is a str" in refused(lambda: pw.host(lambda: 0, on=left, out={"x": "float32"}))
    assert "output is int64, which JAX holds as int32" in refused(
        lambda: pw.host(lambda: 0, on=left, out=np.zeros(3, int))
    )
    assert "is not divisible by" in refused(
        lambda: pw.host(lambda: 0, on=left, out=jax.ShapeDtypeStruct((3,), np.float32), shardings=pw.P("x"))
    )
    assert "pass a pw.virtual_slice" in refused(lambda: pw.host(lambda: 0, on="left"))
    assert "needs a function" in refused(lambda: pw.host(3, on=left))
    assert "a number of seconds, 0 or more, is needed" in refused(lambda: pw.host(lambda: 0, on=left, seconds=-1))
    key = pw.host(lambda k: None, on=left)
    assert "typed random key" in refused(lambda: pw.program(lambda k: key(k))(jax.random.key(0)))


def test_the_error_of_work_that_nobody_waits_for_is_printed(controller, left, a, capsys) -> None:
    @pw.host(on=left)
    def write(value: Any) -> None:
        raise OSError("the disk is full")

    @pw.program
    def step(value: Any) -> Any:
        write(value)
        return a(value)

    step(v).wait()
    controller.wait_all()
    said = capsys.readouterr().err
    assert "NodeError: write of step, run " in said
    assert "OSError: the disk is full" in said


def test_a_call_that_declares_no_output_says_so_where_its_result_is_asked_for(controller, left) -> None:
    """It returned ``None``, which has no attribute ``result``."""
    called = []
    log = pw.host(called.append, on=left)
    made = pw.program(lambda v: log(v))(v)
    for nothing in (log(v), made):
        with pytest.raises(pw.UsageError, match=re.escape(
            "append(…).result: append is host work without out=, so a call returns no future. Declare what it returns, "
            "pw.host(append, on=place, out=jax.ShapeDtypeStruct((8,), jnp.float32)), or an example of it. To wait for "
            "its end, call it inside `with pw.record():`."
        )):  # fmt: skip
            nothing.result()
        assert not hasattr(nothing, "result")
        assert not nothing
        assert repr(nothing) == "<no output of append>"
        assert not jax.tree.leaves(pw.get(nothing))
    with pw.record():
        log(v)
    assert len(called) == 3
