"""Futures: nothing waits unless a value is needed, every conversion gives host values, refusals show the way."""

from __future__ import annotations

import asyncio
import copy
import gc
import itertools
import math
import operator
import pickle
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from tests.support.waiting import LIMIT, is_waited_for, until, until_freed

v = np.arange(8, dtype=np.float32)


@pytest.fixture
def double(left):
    doubled = pw.jit(lambda v: v * 2, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    return doubled


@pytest.fixture
def total(left):
    return pw.jit(lambda v: v.sum(), on=left, in_shardings=pw.P("x"))


numbers = itertools.count()


@pytest.fixture
def gate(left):
    """A computation that ends when the test says so: a callback that waits for an event."""
    opened = threading.Event()

    def wait(x):
        assert opened.wait(LIMIT)
        return x

    def held(x):
        return jax.pure_callback(wait, jax.ShapeDtypeStruct((), np.float32), x)

    held.__name__ = f"held{next(numbers)}"
    yield pw.jit(held, on=pw.virtual_slice(1, island=0)), opened.set
    opened.set()


def test_shape_dtype_and_repr_never_wait(gate, quiet, controller) -> None:
    held, release = gate
    y = held(1.0)
    assert (y.shape, y.dtype, y.ndim, y.done()) == ((), np.float32, 0, False)
    assert repr(y) == f"{y}" == str(y) == f"<future {held.name}: float32[], not computed yet>"
    assert str(y.sharding.spec) is not None
    assert not y.done()
    release()
    assert y.result() == 1.0
    assert y.done()
    assert repr(y) == f"<future {held.name}: float32[], done>"


def test_results_are_numpy_values_of_ones_own(double, total) -> None:
    y, s = double(v), total(v)
    assert type(y.result()) is np.ndarray
    assert type(s.result()) is np.float32
    mine = y.result()
    mine[:] = -1
    np.testing.assert_array_equal(y.result(), v * 2)


@pytest.mark.parametrize(
    ("convert", "expected"),
    [
        (float, 28.0), (int, 28), (complex, 28 + 0j), (bool, True),
        (lambda s: f"{s:.2f}", "28.00"), (lambda s: format(s, "08.3f"), "0028.000"),
        (lambda s: f"{s:>8}", "    28.0"), (math.sqrt, math.sqrt(28)), (np.float64, 28.0), (lambda s: round(float(s)), 28),
    ],
)  # fmt: skip
def test_conversions_of_a_scalar(total, convert, expected) -> None:
    assert convert(total(v)) == expected


def test_conversions_of_an_array(double, left) -> None:
    y = double(v)
    assert [float(element) for element in y] == list(v * 2)
    first, *rest = double(v)
    assert (first, len(rest), len(y)) == (0.0, 7, 8)
    np.testing.assert_array_equal(np.asarray(y), v * 2)
    assert np.asarray(y, dtype=np.int64).dtype == np.int64
    assert list(np.array(y, dtype=object)) == list(v * 2)
    np.testing.assert_array_equal(np.stack([np.asarray(y), v]), np.stack([v * 2, v]))
    count = pw.jit(lambda v: v.astype(int).sum(), on=left)(v)
    assert list(range(30))[count] == 28
    assert operator.index(count) == 28
    assert 4.0 in y


def test_conversions_that_mean_nothing_raise_as_numpy_does(double, total) -> None:
    with pytest.raises(TypeError):
        len(total(v))
    with pytest.raises(ValueError, match="truth value"):
        bool(double(v))
    with pytest.raises(TypeError):
        float(double(v))
    with pytest.raises((TypeError, AttributeError)):
        operator.index(total(v))


def test_plain_formatting_shows_and_a_number_format_waits(gate) -> None:
    held, release = gate
    y = held(2.5)
    assert f"loss {y}" == f"loss <future {held.name}: float32[], not computed yet>"
    release()
    assert f"loss {y:.1f}" == "loss 2.5"


def test_array_is_the_live_sharded_array(double, controller) -> None:
    live = double(v).array()
    assert isinstance(live, jax.Array)
    assert {d.id for d in live.devices()} == {d.id for d in controller.driver.attachment.islands[0].devices}
    assert len({str(s.index) for s in live.addressable_shards}) == 4
    assert "sharded" in (pw.Future.array.__doc__ or "")


def test_sharding_is_known_before_the_value(double) -> None:
    y = double(v)
    assert y.sharding.is_equivalent_to(y.array().sharding, 1)
    assert y.sharding.spec == pw.P("x")


def test_await(double) -> None:
    async def both():
        return await asyncio.gather(*[_await(double(v)), _await(double(v + 1))])

    async def _await(future):
        return await future

    one, two = asyncio.run(both())
    np.testing.assert_array_equal((one, two), (v * 2, v * 2 + 2))


def test_awaiting_leaves_the_event_loop_free(gate) -> None:
    held, release = gate

    async def main():
        waiting = asyncio.ensure_future(_await(held(3.0)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        release()
        return await waiting

    async def _await(future):
        return await future

    assert asyncio.run(main()) == 3.0


def test_waiting_in_other_threads(double) -> None:
    y, out = double(v), []
    threads = [threading.Thread(target=lambda: out.append(y.result().sum())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert out == [56.0] * 4


def test_get_wait_and_put_take_trees(double, left) -> None:
    tree = {"y": double(v), "n": 3, "s": "text", "none": None, "pair": (double(v + 1), [v])}
    assert pw.wait(tree) is tree
    assert tree["y"].done()
    values = pw.get(tree)
    assert (values["n"], values["s"], values["none"]) == (3, "text", None)
    np.testing.assert_array_equal(values["pair"][0], v * 2 + 2)
    placed = pw.put({"a": v, "b": (1, 2.0)}, on=left)
    assert all(isinstance(leaf, pw.Future) for leaf in jax.tree.leaves(placed))
    assert pw.get(placed)["b"] == (1, 2.0)
    assert pw.get(pw.put([], on=left)) == []


BINARY = {
    "y + 1": lambda y: y + 1, "1 + y": lambda y: 1 + y, "y - 2.5": lambda y: y - 2.5, "y * 1": lambda y: y * y,
    "y / 2": lambda y: y / 2, "2 ** y": lambda y: 2**y, "y @ 1": lambda y: y @ np.eye(8), "y % 3": lambda y: y % 3,
    "y == 1": lambda y: y == 1, "y != 1": lambda y: y != 1, "y < 1": lambda y: y < 1, "y > 1": lambda y: y > 1,
    "y & 1": lambda y: y & 1,
}  # fmt: skip


@pytest.mark.parametrize("text", BINARY)
def test_arithmetic_is_refused_with_both_ways_out(double, text) -> None:
    y = double(v)
    host = text.replace("y", "y.result()")
    with pytest.raises(pw.UsageError) as error:
        BINARY[text](y)
    assert str(error.value) == (
        f"{text}: y = doubled is a future and is not computed on outside a program. Write {host} for a host value, or "
        f"compute on the devices: pw.jit(lambda y: {text}, on=place)(y), or inside a @pw.program."
    )
    np.testing.assert_array_equal(y.result(), v * 2)


@pytest.mark.parametrize(
    ("text", "host", "operation"),
    [
        ("y[0]", "y.result()[0]", lambda y: y[0]),
        ("-y", "-y.result()", lambda y: -y),
        ("abs(y)", "abs(y.result())", abs),
        ("~y", "~y.result()", operator.invert),
        ("a JAX function of y", "y.result() in its place", jnp.sum),
        ("a JAX function of y", "y.result() in its place", lambda y: jax.jit(lambda z: z + 1)(y)),
        ("a JAX function of y", "y.result() in its place", lambda y: jnp.stack([y, y])),
        ("np.add(y, …)", "np.add(y.result(), …)", lambda y: np.add(y, 1)),
        ("np.add(…, y)", "np.add(…, y.result())", lambda y: v + y),
        ("np.exp(y)", "np.exp(y.result())", np.exp),
        ("np.add.reduce(y)", "np.add.reduce(y.result())", np.add.reduce),
        ("y.T", "y.result().T", lambda y: y.T),
        ("y.mean", "y.result().mean()", lambda y: y.mean()),
    ],
)
def test_other_operations_are_refused_with_both_ways_out(double, text, host, operation) -> None:
    y = double(v)
    with pytest.raises((pw.UsageError, TypeError)) as error:
        operation(y)
    assert f"{text}: y = doubled is a future and is not computed on outside a program. Write {host} " in str(
        error.value
    )
    np.testing.assert_array_equal(y.result(), v * 2)


def test_an_attribute_that_arrays_lack_is_missing_like_any_other(double) -> None:
    y = double(v)
    assert not hasattr(y, "mean")
    with pytest.raises(AttributeError, match=r"^a future has no attribute 'nonsense'$"):
        y.nonsense  # noqa: B018


def test_jax_block_until_ready_waits(gate, double, controller) -> None:
    held, let_go = gate
    y = held(1.0)
    waits = threading.Thread(target=lambda: (until(lambda: is_waited_for(controller)), let_go()))
    waits.start()
    assert jax.block_until_ready({"y": y})["y"] is y
    assert y.done()
    waits.join()
    assert (y.size, y.nbytes) == (1, 4)


def test_copies_of_a_future_are_itself(double, controller, quiet) -> None:
    y = double(v)
    assert copy.copy(y) is y
    assert copy.deepcopy({"y": [y]})["y"][0] is y
    with pytest.raises(pw.UsageError, match=r"cannot be pickled: save pw.get"):
        pickle.dumps(y)
    del y
    quiet(controller)
    np.testing.assert_array_equal(double(v).result(), v * 2)


def test_a_call_with_a_lost_argument_leaves_nothing_behind(double, left, controller, quiet) -> None:
    y = double(v)
    y.wait()
    pw.reset()
    both = pw.jit(lambda x, y: x + y, on=left)
    with pytest.raises(pw.LostError):
        both(np.ones(8), y)
    quiet(controller)
    assert not controller.machine.store.buffers


def test_a_future_says_that_it_is_lost(double, controller) -> None:
    y = double(v)
    y.wait()
    pw.reset()
    assert "lost: its devices have been let go" in repr(y)
    for use, argument in ((y.result, ""), (lambda: double(y), "doubled: argument v: ")):
        with pytest.raises(pw.LostError, match=f"^{argument}doubled was held on devices that have been let go"):
            use()


def test_the_shown_ways_out_work(double, left) -> None:
    y = double(v)
    np.testing.assert_array_equal(y.result() + 1, v * 2 + 1)
    np.testing.assert_array_equal(pw.jit(lambda y: y + 1, on=left)(y).result(), v * 2 + 1)
    np.testing.assert_array_equal(pw.program(lambda y: double(y) + 1)(y).result(), v * 4 + 1)


def test_futures_are_hashable_and_equal_to_nothing(double) -> None:
    y, z = double(v), double(v)
    assert len({y, z, y}) == 2
    with pytest.raises(pw.UsageError):
        assert [y].index(z) == 1


def test_a_donated_future_names_the_line_that_donated_it(left) -> None:
    take = pw.jit(lambda w: w + 1, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"), donate_argnums=0)
    w = pw.put(v, on=left, shardings=pw.P("x"))
    line = here() + 1
    out = take(w)
    assert repr(w) == f"<future put on left: float32[8], donated at test_futures.py:{line}>"
    again, both = pw.jit(lambda w, n: w["a"] + n, on=left), pw.program(lambda *many: take(many[1]))
    for use, argument in (
        (w.result, ""), (w.array, ""), (lambda: float(w), ""), (lambda: pw.get(w), ""),
        (lambda: take(w), "take: argument w: "), (lambda: again({"a": w}, 1.0), "again: argument w['a']: "),
        (lambda: both(v, w), "both: argument many[1]: "),
    ):  # fmt: skip
        with pytest.raises(pw.LostError) as error:
            use()
        assert str(error.value) == (
            f"{argument}put on left was donated at test_futures.py:{line}: its memory belongs to that call's result. "
            "Use that result, or do not donate it."
        )
    np.testing.assert_array_equal(out.result(), v + 1)


def here() -> int:
    """The caller's line."""
    import sys

    return sys._getframe(1).f_lineno


def test_a_program_that_donates_names_its_line(double) -> None:
    w = double(v)
    line = here() + 1
    out = pw.program(lambda w: double(w), donate_argnums=0)(w)
    with pytest.raises(pw.LostError, match=rf"doubled was donated at test_futures.py:{line}: "):
        w.result()
    np.testing.assert_array_equal(out.result(), v * 4)


def test_a_call_that_is_refused_donates_nothing(left) -> None:
    take = pw.jit(lambda w, u: w + u, on=left, in_shardings=pw.P("x"), donate_argnums=0)
    w = pw.put(v, on=left, shardings=pw.P("x"))
    with pytest.raises(pw.ShardingError):
        take(w, np.arange(6.0))
    with pytest.raises(pw.UsageError, match="argument w is donated and passed twice in one call"):
        take(w, w)
    np.testing.assert_array_equal(w.result(), v)
    np.testing.assert_array_equal(take(w, v).result(), v * 2)


def test_a_call_that_is_refused_in_a_record_donates_nothing(left) -> None:
    take = pw.jit(lambda w, u: w + u, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"), donate_argnums=0)
    read = pw.jit(lambda w: w + 1, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    w = pw.put(v, on=left, shardings=pw.P("x"))
    with pw.record():
        y = read(w)
        with pytest.raises(pw.UsageError, match="donated and passed twice"):
            take(w, w)
    np.testing.assert_array_equal(y.result(), v + 1)
    np.testing.assert_array_equal(w.result(), v)


def test_dropping_a_future_frees_its_memory(double, controller, quiet) -> None:
    y = double(v)
    y.result()
    quiet(controller)
    before = len(controller.machine.store.buffers)
    del y
    gc.collect()
    quiet(controller)
    assert len(controller.machine.store.buffers) == before - 1
    assert not controller.machine.store.buffers
    assert not controller.driver.entries


def test_dropping_a_future_before_it_is_computed_is_fine(gate, quiet, controller) -> None:
    held, release = gate
    held(1.0)
    later = held(2.0)
    gc.collect()
    release()
    assert later.result() == 2.0
    quiet(controller)
    assert len(controller.driver.entries) == 1


def live(controller: pw.Controller, shape: tuple[int, ...]) -> int:
    """Arrays of this shape on the islands' own clients."""
    clients = [island.devices[0].client for island in controller.driver.attachment.islands]
    return sum(array.shape == shape for client in clients for array in client.live_arrays())


def test_keeping_one_result_does_not_keep_the_others(left, controller, quiet) -> None:
    step = pw.jit(lambda w: (w + 1, w.sum()), on=left, in_shardings=pw.P("x"), out_shardings=(pw.P("x"), pw.P()))
    w, losses = np.zeros(1024, np.float32), []
    for _ in range(20):
        w, loss = step(w)
        losses.append(loss)
    pw.wait((w, losses))
    quiet(controller)
    assert [float(loss) for loss in losses] == [1024.0 * i for i in range(20)]
    until_freed(lambda: live(controller, (1024,)) <= 3)


def test_keeping_a_run_does_not_keep_its_values(left, controller, quiet) -> None:
    step = pw.program(pw.jit(lambda w: w + 1, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x")))
    w = np.zeros(1040, np.float32)
    with pw.record() as run:
        for _ in range(20):
            w = step(w)
    quiet(controller)
    assert run.programs[0].runs == 20
    until_freed(lambda: live(controller, (1040,)) <= 3)


def test_fetches_and_waits_are_recorded_with_their_bytes(double) -> None:
    with pw.record() as run:
        double(v).result()
    (fetch,) = run.events.of_kind("fetch")
    assert (fetch["bytes"], fetch["end"] >= fetch["start"]) == (32, True)


def test_results_come_while_others_are_still_computed(gate, double) -> None:
    held, release = gate
    other = pw.jit(lambda v: v + 1, on=pw.virtual_slice(4, island=1))
    slow = held(1.0)
    np.testing.assert_array_equal(other(v).result(), v + 1)
    assert not slow.done()
    release()
    assert slow.result() == 1.0
