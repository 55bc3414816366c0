"""Loose calls in a record become one program; programs, values and the end of the block send them out."""

from __future__ import annotations

import asyncio

import jax
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.session.calls import batching
from pathways_nb.session.futures import Future

v = np.arange(8, dtype=np.float32)


def sent(run: pw.Run) -> list[tuple[str, int, int]]:
    """(program, computations in it, times it ran)."""
    return [(p.graph.name, sum(n.kind == "computation" for n in p.graph.nodes), p.runs) for p in run.programs]


def test_loose_calls_become_one_program(a, b) -> None:
    with pw.record("cell 1") as run:
        x = a(v)
        y = b(x)
        z = b(a(y))
        assert sent(run) == []
    assert sent(run) == [("double ×2, increment ×2", 4, 1)]
    np.testing.assert_array_equal(z.result(), (v * 2 + 1) * 2 + 1)
    np.testing.assert_array_equal(x.result(), v * 2)
    assert all(future.done() for future in (x, y, z))


def test_a_loose_call_outside_a_record_goes_out_at_once(a, controller, quiet) -> None:
    a(v)
    quiet(controller)
    events = controller.record.events()
    assert [row["name"] for row in events.of_kind("compute")] == ["double"]


def test_a_loose_call_has_one_future(a, b, monkeypatch) -> None:
    """Dispatching binds the futures that the calls returned; only for what nobody holds any more, it makes another."""
    made, init = [], Future.__init__

    def counted(self, *args) -> None:
        made.append(self)
        init(self, *args)

    monkeypatch.setattr(Future, "__init__", counted)
    y = a(v)
    assert made == [y]
    with pw.record("cell"):
        x = a(v)
        z = b(x)
        made.clear()  # the list holds them, too
    assert not made
    assert (x.is_bound, z.is_bound) == (True, True)
    np.testing.assert_array_equal(z.result(), v * 2 + 1)
    with pw.record("cell"):
        b(a(v))
        made.clear()
    assert len(made) == 1, "the last call was made for its own sake"


def test_calling_a_program_sends_what_was_gathered_first(a, b) -> None:
    @pw.program
    def train(w):
        return b(a(w))

    with pw.record("cell") as run:
        x = a(v)
        y = train(x)
        z = a(y)
    assert sent(run) == [("double", 1, 2), ("train", 2, 1)], "the loose call of a is one program, drawn once"
    np.testing.assert_array_equal(z.result(), (v * 4 + 1) * 2)


@pytest.mark.parametrize(
    "need",
    [lambda y: float(y.result().sum()), lambda y: bool((y.result() > 0).any()), lambda y: list(y), lambda y: y.array(),
     lambda y: pw.get(y), lambda y: pw.wait(y), np.asarray, lambda y: f"{y.result()[0]:.2f}", lambda y: y.sharding],
)  # fmt: skip
def test_needing_a_value_sends_what_was_gathered(a, b, need) -> None:
    with pw.record("cell") as run:
        x = b(a(v))
        need(x)
        assert sent(run) == [("double, increment", 2, 1)]
        y = a(x)
    assert sent(run) == [("double, increment", 2, 1), ("double", 1, 1)]
    np.testing.assert_array_equal(y.result(), (v * 2 + 1) * 2)


def test_branching_on_a_value_waits_for_it(a, left) -> None:
    positive = pw.jit(lambda v: v.sum() > 0, on=left)
    with pw.record() as run:
        y = a(v) if positive(v) else v
        assert len(run.programs) == 1
    np.testing.assert_array_equal(pw.get(y), v * 2)


def test_put_sends_what_was_gathered(a, left) -> None:
    with pw.record("cell") as run:
        a(v)
        kept = a(v)
        pw.put(v, on=left)
        assert len(run.programs) == 1
    np.testing.assert_array_equal(kept.result(), v * 2)


def test_calls_run_even_if_nobody_keeps_their_results(a, b) -> None:
    with pw.record("cell") as run:
        for _ in range(3):
            a(v)
        y = b(a(v))
    assert sorted(run.events.of_kind("compute")["place"]) == ["left"] * 4 + ["right"]
    np.testing.assert_array_equal(y.result(), v * 2 + 1)


def test_a_cell_run_again_is_the_same_program(a, b) -> None:
    def cell() -> pw.Run:
        with pw.record("cell") as run:
            y = b(a(v))
        np.testing.assert_array_equal(y.result(), v * 2 + 1)
        return run

    cell()
    again = cell()
    assert [len(again.events.of_kind(kind)) for kind in ("trace", "lower", "compile")] == [0, 0, 0]


def test_an_outside_array_given_twice_is_one_argument(a, b, left) -> None:
    w = pw.put(v, on=left)
    with pw.record("cell") as run:
        y, z = a(w), b(w)
    (program,) = run.programs
    assert [len(n.outputs) for n in program.graph.nodes if n.kind == "argument"] == [1]
    np.testing.assert_array_equal(y.result() + z.result(), v * 2 + v + 1)


def test_numpy_given_to_a_gathered_call_may_change_before_the_flush(a) -> None:
    mine = v.copy()
    with pw.record():
        y = a(mine)
        mine[:] = -1
    np.testing.assert_array_equal(y.result(), v * 2)


def test_the_names_of_arguments_are_the_computations(left) -> None:
    add = pw.jit(lambda weights, batch: weights + batch["tokens"], on=left)
    with pw.record("cell") as run:
        add(v, {"tokens": v}).done()
        kept = add(v, {"tokens": v})
    names = [n.name for n in run.programs[0].graph.nodes if n.kind == "argument"]
    assert all(name.startswith(("weights", "batch")) for name in names)
    np.testing.assert_array_equal(kept.result(), v * 2)


@pytest.mark.slow
def test_a_thousand_loose_calls_in_one_record(controller, left, quiet) -> None:
    one = pw.virtual_slice(1, island=0)
    inc = pw.jit(lambda v: v + 1, on=one)
    with pw.record("long") as run:
        y = np.float32(0)
        for _ in range(1000):
            y = inc(y)
    assert y.result() == 1000.0
    assert sum(calls * runs for _, calls, runs in sent(run)) == 1000
    assert len(sent(run)) <= 3
    quiet(controller)
    assert len(controller.driver.entries) == 1


def test_records_nest(a, b) -> None:
    with pw.record("outer") as outer:
        x = a(v)
        with pw.record("inner") as inner:
            y = b(x)
        z = a(y)
    assert sent(inner) == [("increment", 1, 1)]
    assert sorted(sent(outer)) == [("double", 1, 2), ("increment", 1, 1)], "its own calls, and what ran within it"
    np.testing.assert_array_equal(z.result(), (v * 2 + 1) * 2)


def test_a_gathered_future_outlives_its_record(a) -> None:
    def cell():
        with pw.record():
            return a(v)

    np.testing.assert_array_equal(cell().result(), v * 2)


def test_an_error_in_the_block_still_computes_what_was_called_before(a, controller) -> None:
    with pytest.raises(ZeroDivisionError), pw.record() as run:  # noqa: PT012
        y = a(v)
        1 / 0  # noqa: B018
    np.testing.assert_array_equal(y.result(), v * 2)
    assert run.finished
    assert controller.recordings == []


def test_a_bad_loose_call_raises_at_its_own_line_and_spares_the_others(a, b) -> None:
    with pw.record():
        x = a(v)
        with pytest.raises(pw.ShardingError, match="argument v has shape"):
            a(np.arange(6.0))
        y = b(x)
    np.testing.assert_array_equal(y.result(), v * 2 + 1)


def test_donating_a_gathered_value_inside_a_record(left) -> None:
    take = pw.jit(lambda w: w + 1, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"), donate_argnums=0)
    make = pw.jit(lambda w: w * 2, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    with pw.record():
        w = make(v)
        read = make(w)
        y = take(w)
        with pytest.raises(pw.LostError, match="was donated at test_call_batching.py"):
            make(w)
    np.testing.assert_array_equal(y.result(), v * 2 + 1)
    np.testing.assert_array_equal(read.result(), v * 4)
    with pytest.raises(pw.LostError, match="was donated at test_call_batching.py"):
        w.result()


def test_donating_an_outside_value_inside_a_record(left) -> None:
    take = pw.jit(lambda w: w + 1, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"), donate_argnums=0)
    w = pw.put(v, on=left, shardings=pw.P("x"))
    with pw.record():
        y = take(w)
    np.testing.assert_array_equal(y.result(), v + 1)


def test_trees_out_of_a_gathered_call(left) -> None:
    f = pw.jit(lambda v: {"a": v, "b": (v + 1, [v + 2])}, on=left)
    with pw.record():
        out = f(v)
        again = f(out["b"][1][0])
    assert jax.tree.structure(out) == jax.tree.structure({"a": 0, "b": (0, [0])})
    np.testing.assert_array_equal(again["b"][0].result(), v + 3)


def test_python_numbers_stay_weak(left) -> None:
    scale = pw.jit(lambda x, s: x * s, on=left)
    x = jax.numpy.ones(4, jax.numpy.bfloat16)
    with pw.record():
        y = scale(x, 2.0)
        z = scale(y, 3)
    assert y.dtype == y.result().dtype == z.dtype == z.result().dtype == jax.numpy.bfloat16


def test_several_threads_may_wait_for_what_is_gathered(a, b) -> None:
    async def both() -> None:
        with pw.record():
            y, z = await asyncio.gather(a(v), b(v))
        np.testing.assert_array_equal(y, v * 2)
        np.testing.assert_array_equal(z, v + 1)

    asyncio.run(both())


def test_arguments_whose_names_would_be_the_same(left) -> None:
    first, second = pw.jit(lambda x: x * 2, on=left), pw.jit(lambda x_1: x_1 + 1, on=left)
    with pw.record() as run:
        ys = first(v), first(v + 1), second(v + 2)
    np.testing.assert_array_equal(pw.get(ys), [v * 2, v * 2 + 2, v + 3])
    names = [node.name for node in run.programs[0].graph.nodes if node.kind == "argument"]
    assert names == ["x", "x_1", "x_1_1"]


def test_reset_inside_a_record_leaves_what_was_gathered_to_run(a) -> None:
    with pw.record():
        y = a(v)
        pw.reset()
    np.testing.assert_array_equal(y.result(), v * 2)


def test_large_arguments_are_not_gathered_without_end(a, monkeypatch) -> None:
    monkeypatch.setattr(batching, "MOST_COPIED", 3 * v.nbytes)
    with pw.record() as run:
        ys = [a(v) for _ in range(7)]
        assert sum(program.runs for program in run.programs) == 2
    assert all((y.result() == v * 2).all() for y in ys)
