"""Repeated calls: found by one look-up, they give what the first one gives, and keep nothing alive."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.session.calls import known_calls, program, stored_values
from tests.support.waiting import until, until_freed

X = np.arange(8, dtype=np.float32)
SIZE = 8 * 4


@pytest.fixture
def longer(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was called the long way, bound and checked."""
    names: list[str] = []
    refuse = program.refuse_tracers
    monkeypatch.setattr(program, "refuse_tracers", lambda call: (names.append(call.owner), refuse(call)))
    return names


def subtract(place: pw.VirtualSlice) -> Any:
    return pw.jit(lambda a, b, c=1.0: a - 2 * b + c, on=place)


def test_the_second_of_equal_calls_is_found(left, longer) -> None:
    step, y = subtract(left), pw.put(X, on=left)
    for _ in range(3):
        np.testing.assert_array_equal(step(y, y).result(), 1 - X)
        np.testing.assert_array_equal(step(X, 2.0).result(), X - 3)
    assert len(longer) == 2


@pytest.mark.parametrize("make", [subtract, lambda place: pw.program(subtract(place), name="p")])
def test_arguments_keep_their_places_however_they_are_given(left, make) -> None:
    step = make(left)
    for _ in range(2):
        for a, b, c in ((X, X + 1, 3.0), (X + 1, X, 2.0)):
            expected = a - 2 * b + c
            np.testing.assert_array_equal(step(a, b, c).result(), expected)
            np.testing.assert_array_equal(step(c=c, b=b, a=a).result(), expected)
            np.testing.assert_array_equal(step(a, c=c, b=b).result(), expected)


def test_an_array_that_is_given_twice_is_no_pair_of_arrays(left) -> None:
    step, y, z = subtract(left), pw.put(X, on=left), pw.put(X + 1, on=left)
    for _ in range(2):
        for a, b in ((y, z), (y, y), (z, y), (z, z)):
            np.testing.assert_array_equal(step(a, b).result(), a.result() - 2 * b.result() + 1)


def test_numbers_are_told_apart_by_type_and_not_by_value(left, longer) -> None:
    step = pw.jit(lambda x, n: x * n, on=left)
    for number in (1, 2, 3, 1.0, 2.5, True, False, np.float32(2), 4):
        found = step(X, number).result()
        expected = jax.jit(lambda x, n: x * n)(X, number)
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
    assert len(longer) == 4


def test_a_call_under_other_contexts_is_another_call(left) -> None:
    step = pw.jit(lambda x: x / 3, on=left)
    for _ in range(2):
        assert step(np.float32(1)).dtype == np.float32
        with jax.enable_x64(True):
            assert step(np.float64(1)).dtype == np.float64
            assert step(1).dtype == jax.jit(lambda x: x / 3)(1).dtype


def test_what_was_donated_is_named_by_the_call_that_is_repeated(left) -> None:
    step = pw.jit(lambda x: x + 1, on=left, donate_argnums=0)
    y = pw.put(X, on=left)
    for _ in range(3):
        y = step(y)
    step(y)
    with pytest.raises(pw.LostError, match="was donated at test_known_calls.py"):
        step(y)
    np.testing.assert_array_equal(step(pw.put(X, on=left)).result(), X + 1)


@pytest.mark.parametrize(("donated", "is_known"), [((0,), True), ((), True), ((), False)])
def test_what_another_thread_donates_meanwhile_is_not_read(left, monkeypatch, donated, is_known) -> None:
    """The call that takes it over waits for its readers: one that came behind it would wait for it in turn."""
    take = pw.jit(lambda x: x + 1, on=left, donate_argnums=0)
    other = pw.jit(lambda x: x + 2, on=left, donate_argnums=donated)
    for _ in range(is_known):
        pw.wait([take(pw.put(X, on=left)), other(pw.put(X, on=left))])
    y, taken, hold = pw.put(X, on=left), [], stored_values.hold

    def hold_later(*args: Any) -> Any:
        monkeypatch.setattr(stored_values, "hold", hold)
        between = threading.Thread(target=lambda: taken.append(take(y)))
        between.start()
        between.join()
        return hold(*args)

    monkeypatch.setattr(stored_values, "hold", hold_later)  # which is called when the arguments were checked
    with pytest.raises(pw.LostError, match="was donated at"):
        other(y)
    np.testing.assert_array_equal(taken[0].result(), X + 1)


def test_a_reset_forgets_what_was_known(controller) -> None:
    place = pw.virtual_slice(4)
    step = pw.jit(lambda x: x + 1, on=place)
    before = step(step(pw.put(X, on=place)))
    before.wait()
    controller.reset()
    with pytest.raises(pw.LostError):
        step(before).result()
    np.testing.assert_array_equal(step(pw.put(X, on=place)).result(), X + 1)


def test_known_calls_keep_neither_programs_nor_controllers_alive() -> None:
    controller = pw.attach("cpu", islands=1, devices_per_island=1)
    place = pw.virtual_slice(1)
    step = pw.program(lambda x: pw.jit(jnp.sin, on=place)(x), name="step")
    for _ in range(2):
        step(X).wait()
    seen = weakref.ref(step)
    del step
    until(lambda: (gc.collect(), seen() is None)[1])
    kept = pw.jit(jnp.cos, on=place)
    for _ in range(2):
        kept(X).wait()
    epoch = weakref.ref(controller.epoch)
    pw.attach("cpu", islands=1, devices_per_island=2)
    del controller
    pw.put(X, on=pw.virtual_slice(1)).wait()  # which closes the replaced one
    until(lambda: (gc.collect(), epoch() is None)[1])


def test_what_is_known_of_a_call_may_refer_to_the_program(left) -> None:
    def refers_to_itself() -> list[weakref.ref[Any]]:
        programs: list[Any] = []
        twice = pw.host(lambda x: (programs, x * 2)[1], on=left, out=jax.ShapeDtypeStruct(X.shape, X.dtype))
        programs.append(pw.program(lambda x: twice(x), name="refers to itself"))
        for _ in range(2):
            np.testing.assert_array_equal(programs[0](X).result(), X * 2)
            np.testing.assert_array_equal(twice(X).result(), X * 2)
        return [weakref.ref(programs[0]), weakref.ref(twice)]

    seen = refers_to_itself()
    until_freed(lambda: [one() for one in seen] == [None, None])


def test_what_is_no_argument_is_named_beside_a_model(left) -> None:
    model = equinox.nn.Linear(8, 8, key=jax.random.key(0))
    step = pw.program(lambda model, x: model(x), name="step")
    with pytest.raises(pw.UsageError, match=r"step: argument x = \{1\} is a set, not an array"):
        step(model, {1})


def test_only_so_many_kinds_of_calls_are_remembered(left, controller, monkeypatch) -> None:
    monkeypatch.setattr(known_calls, "_MOST", 3)
    step = pw.jit(lambda x: x + 1, on=left)
    for length in range(1, 9):
        np.testing.assert_array_equal(step(np.zeros(length, np.float32)).result(), np.ones(length))
    assert len(step.known_calls[controller.epoch]) <= 3


def test_one_kept_leaf_keeps_none_of_the_others(controller) -> None:
    """A training step's loss, kept for a plot, must not keep its parameters."""
    place = pw.virtual_slice(1)
    step = pw.jit(lambda state: ([x * 0.5 for x in state], state[0].sum()), on=place, donate_argnums=0)
    state, losses = pw.put([X] * 40, on=place), []
    for _ in range(5):
        state, loss = step(state)
        losses.append(loss)
    pw.wait((state, losses))
    store = controller.machine.store
    until(lambda: len(store.buffers) == 45)
    assert controller.machine.memory.islands[0].totals[0] == 40 * SIZE + 5 * 4
    del state
    until(lambda: len(store.buffers) == len(controller.driver.entries) == 5)
    assert controller.machine.memory.islands[0].totals[0] == 5 * 4
    assert [float(loss) for loss in losses] == [28 * 0.5**n for n in range(5)]


def test_leaves_die_one_by_one_and_memory_says_so(controller) -> None:
    place = pw.virtual_slice(1)
    split = pw.jit(lambda x: [x + n for n in range(20)], on=place)
    for _ in range(2):
        leaves = split(pw.put(X, on=place))
        pw.wait(leaves)
    memory = controller.machine.memory.islands[0]
    while leaves:
        until(lambda: memory.totals[0] == len(leaves) * SIZE)
        last = leaves.pop()
        np.testing.assert_array_equal(last.result(), X + len(leaves))
        del last
    until(lambda: not controller.machine.store.buffers and not controller.driver.entries)


def test_what_futures_were_is_forgotten_with_them(controller) -> None:
    def put_somewhere_else(length: int) -> None:
        pw.put(np.zeros(length, np.float32), on=pw.virtual_slice(1, island=0)).wait()

    for length in range(1, 4):
        put_somewhere_else(length)
    until_freed(lambda: not controller.kinds)


def test_what_many_calls_read_keeps_none_of_them(left, controller) -> None:
    data, step = pw.put(X, on=left), pw.jit(lambda x, n: x * n, on=left)
    runs = weakref.WeakSet[Any]()
    for number in range(50):
        result = step(data, float(number))
        runs.update(controller.driver.runs.values())
        result.wait()
        del result
    until(lambda: (gc.collect(), not runs)[1])


def test_a_lost_argument_is_named_by_its_parameter_in_a_repeated_call(left) -> None:
    double, step = pw.jit(lambda x: x * 2, on=left), pw.jit(lambda a, b: a - b, on=left)
    mine = double(X)
    step(mine, double(X)).wait()
    with pw.client("bob"):
        hers = double(X)
        step(mine, hers).wait()
    with pytest.raises(pw.LostError, match=r"^(<lambda>|step): argument b: .*bob"):
        step(mine, hers)
