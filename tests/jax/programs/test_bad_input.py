"""Bad input: one clear error that names the argument or the line, both numbers and the fix; then everything works."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw

v = np.arange(8, dtype=np.float32)


def here() -> int:
    """The caller's line."""
    return sys._getframe(1).f_lineno


@pytest.fixture
def a(left):
    return pw.jit(double, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))


@pytest.fixture
def b(right):
    return pw.jit(increment, on=right, in_shardings=pw.P("x"), out_shardings=pw.P("x"))


def double(v):
    return v * 2


def increment(v):
    return v + 1


@pytest.fixture(autouse=True)
def usable_afterwards(a, b):
    """Whatever went wrong, the next program runs."""
    yield
    chain = pw.program(lambda v: b(a(v)))
    np.testing.assert_array_equal(chain(v).result(), v * 2 + 1)
    with pw.record():
        y = b(a(v))
    np.testing.assert_array_equal(y.result(), v * 2 + 1)


def refused(kind: type[Exception], call) -> str:
    """The text of the error that a call raises."""
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


# ---- shardings


@pytest.mark.parametrize(
    ("spec", "twice"),
    [(pw.P("x", "x"), "dimensions 0 and 1"), (pw.P(None, ("x", "x")), "dimension 1 twice")],
)
def test_an_axis_named_twice_is_told_with_both_dimensions_and_the_fix(left, spec, twice) -> None:
    said = (
        f"names the axis 'x' of left for {twice}: an axis divides one dimension, once. Leave it out at one of them, or "
    )
    said += 'take a place with an axis for each: pw.virtual_slice((2, 2), axes=("x", "y")).'
    assert said in refused(pw.ShardingError, lambda: pw.jit(double, on=left, in_shardings=spec))
    assert said in refused(pw.ShardingError, lambda: pw.jit(double, on=left, out_shardings=spec))
    assert said in refused(pw.ShardingError, lambda: pw.put(np.ones((4, 4)), on=left, shardings=spec))
    text = refused(pw.ShardingError, lambda: pw.shard_map(double, on=left, in_specs=(spec,), out_specs=pw.P()))
    assert text.startswith("double: in_specs[0] = ")
    assert said in text


def test_no_remark_of_jax_stands_below_an_error_of_ours(a) -> None:
    def program(w):
        return a(w)

    with pytest.raises(pw.ShardingError) as error:
        pw.program(program)(np.arange(6.0))
    assert "removed its internal frames" not in "".join(traceback.format_exception(error.value))


def test_a_branch_on_a_value_shows_its_line_and_nothing_of_jax(a) -> None:
    def program(w):
        y = a(w)
        if float(y[0]) > 0:
            return y
        return w

    with pytest.raises(
        pw.UsageError, match=r"test_bad_input\.py:\d+\)\. Use jax\.lax\.cond inside a computation, or "
    ) as error:
        pw.program(program)(v)
    told = traceback.format_exception(error.value)
    assert "if float(y[0]) > 0:" in told[-2]
    assert not any("jax.errors" in line or "flat_fn" in line for line in told)


def test_a_spec_that_does_not_divide_names_argument_axis_and_both_numbers(a) -> None:
    expected = (
        "double: argument v has shape (6,) and in_shardings=P('x'): dimension 0 of size 6 is not divisible by the 4 "
        "devices of axis 'x' of left. Pad it to 8, or use 3 devices there."
    )
    assert refused(pw.ShardingError, lambda: a(np.arange(6.0))) == expected
    assert refused(pw.ShardingError, lambda: pw.program(lambda w: a(w))(np.arange(6.0))) == expected
    assert refused(pw.ShardingError, lambda: pw.program(lambda w: a(w)).graph(np.arange(6.0))) == expected


def test_a_spec_longer_than_the_shape(a) -> None:
    assert refused(pw.ShardingError, lambda: a(1.0)) == (
        "double: argument v has shape () and in_shardings=P('x'): it has 1 entry for an array of 0 dimensions."
    )


def test_a_path_inside_an_argument_is_named(left) -> None:
    f = pw.jit(lambda tree, n: tree["w"][0] * n, on=left, in_shardings=(pw.P("x"), None))
    assert "argument tree['w'][0] has shape (5,)" in refused(pw.ShardingError, lambda: f({"w": [np.ones(5)]}, 2))


def test_an_output_that_does_not_divide(left) -> None:
    f = pw.jit(lambda v: {"half": v[:5]}, on=left, out_shardings=pw.P("x"))
    text = refused(pw.ShardingError, lambda: f(v))
    assert (
        "output['half'] has shape (5,) and out_shardings=P('x'): dimension 0 of size 5 is not divisible by the 4"
        in text
    )


def test_an_axis_that_the_place_lacks(left) -> None:
    text = refused(pw.ShardingError, lambda: pw.jit(double, on=left, in_shardings=(pw.P("model"),)))
    assert text == "double: in_shardings[0] = P('model') names the axis 'model', but the place left has only 'x'."


def test_something_else_in_place_of_a_spec(left) -> None:
    text = refused(pw.ShardingError, lambda: pw.jit(double, on=left, in_shardings="x"))
    assert text == "double: in_shardings = 'x' is a str; write a pw.P(...) over the axes of left."


def test_too_many_specs(left) -> None:
    f = pw.jit(double, on=left, in_shardings=(pw.P("x"), pw.P()))
    assert refused(pw.ShardingError, lambda: f(v)) == (
        "double: in_shardings has 2 entries for 1 argument; give one pw.P for all, or one for each."
    )


def test_specs_of_another_tree(left) -> None:
    f = pw.jit(lambda t: t["a"], on=left, in_shardings=({"b": pw.P("x")},))
    text = refused(pw.ShardingError, lambda: f({"a": v}))
    assert "which is no prefix of" in text
    assert "give one pw.P for all, or one for each" in text


def test_put_on_something_else_than_a_place(controller) -> None:
    assert refused(pw.UsageError, lambda: pw.put(np.ones(8), on=3)).startswith("put: on=3 is an int, not a place. ")
    made = "put: on which place? Make one, place = pw.virtual_slice(2), and write pw.put(tree, on=place)."
    assert refused(pw.UsageError, lambda: pw.put(np.ones(8))) == made


def test_put_without_a_place_names_those_that_variables_hold(controller) -> None:
    head, tail = pw.virtual_slice(4), pw.virtual_slice((2, 2), axes=("data", "model"))
    with pytest.raises(pw.UsageError) as error:
        pw.put(np.ones(8))
    there = "There are head (x=4), tail (data=2, model=2)."
    assert str(error.value) == f"put: on which place? Write pw.put(tree, on=head). {there}"
    del head, tail


def test_put_names_the_leaf_that_it_cannot_take(left) -> None:
    tree = {"layers": [{"w": v}, {"w": "text"}]}
    expected = "put: tree['layers'][1]['w'] = 'text' is a str, not an array, a number or a future."
    assert refused(pw.UsageError, lambda: pw.put(tree, on=left)) == expected
    uneven = refused(pw.ShardingError, lambda: pw.put({"a": v, "b": v[:6]}, on=left, shardings=pw.P("x")))
    assert uneven.startswith("put: tree['b'] has shape (6,) and shardings=P('x'): dimension 0 of size 6 is not")
    assert "put: tree['n'][0] is 1099511627776, which int32" in refused(
        pw.UsageError, lambda: pw.put({"n": np.array([2**40])}, on=left)
    )


def test_put_with_a_spec_that_does_not_fit(left) -> None:
    text = refused(pw.ShardingError, lambda: pw.put(np.ones(6), on=left, shardings=pw.P("x")))
    assert "put: the array has shape (6,) and shardings=P('x'): dimension 0 of size 6 is not divisible by the 4" in text


def test_per_shard_specs_that_do_not_divide(left) -> None:
    f = pw.shard_map(double, on=left, in_specs=pw.P("x"), out_specs=pw.P("x"))
    assert "argument v has shape (6,) and in_specs=P('x')" in refused(pw.ShardingError, lambda: f(np.arange(6.0)))


# ---- places


def test_more_devices_than_exist(controller) -> None:
    big = pw.virtual_slice(8, name="big")
    text = refused(pw.PlaceError, lambda: pw.jit(double, on=big)(v))
    assert (
        "big asks for 8 devices, but there are 2 islands of 4 devices. A slice lies within one island: use two" in text
    )
    assert "use two" in refused(pw.PlaceError, lambda: pw.put(v, on=big))


def test_a_place_whose_devices_were_let_go(controller, a) -> None:
    y = a(v)
    y.result()
    with pw.attach("cpu", islands=1, devices_per_island=2):
        assert "left" in refused(pw.PlaceError, lambda: a(v))
        np.testing.assert_array_equal(y.result(), v * 2)


# ---- arguments


def test_what_jax_cannot_take(a) -> None:
    step = pw.program(lambda batch, mode: a(batch))
    text = refused(pw.UsageError, lambda: step(v, "fast"))
    assert text == (
        "step: argument mode = 'fast' is a str, not an array, a number or a future. If it selects a variant of the "
        "program, name it static: static_argnames='mode'."
    )
    assert "argument v = 'text' is a str" in refused(pw.UsageError, lambda: a("text"))
    assert "is an object, not an array, a number or a future" in refused(
        pw.UsageError, lambda: pw.put(object(), on=a.place)
    )


def test_arguments_that_do_not_fit_the_function(a) -> None:
    assert (
        refused(pw.UsageError, lambda: a(v, v)) == "double(v): too many positional arguments; given are 2 positional."
    )
    assert refused(pw.UsageError, lambda: a()) == "double(v): missing a required argument: 'v'; given are 0 positional."
    assert "unexpected keyword argument 'y'" in refused(pw.UsageError, lambda: pw.program(lambda x: a(x))(v, y=v))


def test_shapes_that_do_not_fit_each_other_keep_jax_error_and_the_users_line(a, left) -> None:
    f = pw.jit(lambda x, w: x @ w, on=left)
    line = here() - 1
    with pytest.raises(TypeError, match=r"dot_general|contracting|\(2, 3\)") as error:
        f(np.ones((2, 3)), np.ones((4, 5)))
    frames = traceback.extract_tb(error.value.__traceback__)
    assert (frames[-1].filename, frames[-1].lineno) == (__file__, line) or any(
        (frame.filename, frame.lineno) == (__file__, line) for frame in frames
    )


# ---- exceptions in user code


class MyError(Exception):
    """A user's own."""


def test_an_exception_inside_a_computation_keeps_type_and_line(left) -> None:
    def broken(v):
        raise MyError("mine")

    line = here() - 2
    f = pw.jit(broken, on=left)
    for call in (lambda: f(v), lambda: pw.program(lambda w: f(w))(v), lambda: pw.program(lambda w: f(w)).graph(v)):
        with pytest.raises(MyError) as error:
            call()
        assert str(error.value) == "mine"
        frames = traceback.extract_tb(error.value.__traceback__)
        assert (frames[-1].filename, frames[-1].lineno) == (__file__, line)


def test_an_exception_inside_a_program_keeps_type_and_line(a) -> None:
    @pw.program
    def broken(v):
        a(v)
        raise MyError("mine")

    with pytest.raises(MyError) as error:
        broken(v)
    assert traceback.extract_tb(error.value.__traceback__)[-1].name == "broken"


def test_branching_on_a_traced_value_shows_the_two_ways_out(a) -> None:
    @pw.program
    def f(v):
        y = a(v)
        return y if y.sum() > 0 else -y

    text = refused(pw.UsageError, lambda: f(v))
    assert "jax.lax.cond" in text
    assert "cell" in text
    assert re.search(r"test_bad_input.py:\d+", text)


def test_a_cell_branches_instead(a) -> None:
    y = a(v).result()
    np.testing.assert_array_equal(y if y.sum() > 0 else -y, v * 2)


def test_results_that_are_no_arrays(a) -> None:
    f = pw.program(lambda v: (a(v), "done"))
    assert refused(pw.UsageError, lambda: f(v)) == (
        "the program 'f' returns 'done', a str; it can return arrays and numbers only. "
        "Return it from ordinary Python outside the program."
    )


# ---- futures where they do not belong


def test_a_captured_future_is_named(a, b) -> None:
    weights = a(v)

    @pw.program
    def to_computation(x):
        return b(weights)

    @pw.program
    def to_operation(x):
        return a(x) + jnp.sin(weights)

    @pw.program
    def to_result(x):
        return weights

    expected = "uses the future 'weights' from outside. Pass it as an argument of 'to_"
    assert expected in refused(pw.UsageError, lambda: to_computation(v))
    assert expected in refused(pw.UsageError, lambda: to_operation(v))
    assert "returns the future 'weights' from outside" in refused(pw.UsageError, lambda: to_result(v))


def test_a_future_captured_by_arithmetic_in_a_program_is_named(a) -> None:
    weights = a(v)

    @pw.program
    def f(x):
        return a(x) + weights

    text = refused(pw.UsageError, lambda: f(v))
    assert "the program 'f' uses the future 'weights' from outside. Pass it as an argument of 'f' instead." in text


def test_a_future_captured_by_a_computation_is_named(a, left) -> None:
    weights = a(v)
    f = pw.jit(lambda x: x + jnp.sin(weights), on=left)
    expected = "the computation 'f' uses the future 'weights' from outside. Pass it as an argument of 'f' instead."
    f.name = "f"
    for call in (pw.program(lambda x: f(x)), f):
        assert expected in refused(pw.UsageError, lambda call=call: call(v))


WAITS = {
    "wait": lambda y: y.wait(),
    "result": lambda y: y.result(),
    "array": lambda y: y.array(),
    "done": lambda y: y.done(),
    "float": float,
    "bool": bool,
    "list": list,
    "asarray": np.asarray,
    "get": pw.get,
    "block_until_ready": jax.block_until_ready,
}
"""What waits for a future, or lets time pass for one."""


@pytest.mark.parametrize("attached", ["cpu", "sim"])
@pytest.mark.parametrize("wait", WAITS)
def test_a_trace_does_not_wait_for_a_future(controller, left, wait, attached) -> None:
    with pw.attach("sim:tpu_v3:2x4") if attached == "sim" else contextlib.nullcontext():
        y = pw.jit(double, on=left)(v)
        y.wait()  # also where it is there already: that would be so in one run and not in the next

        def waits(x):
            WAITS[wait](y)
            return x + 1

        text = refused(pw.UsageError, lambda: pw.program(waits)(v))
        assert re.fullmatch(
            r"the program 'waits' waits for the future 'y' from outside while it is traced \(test_bad_input\.py:\d+\)\. "
            r"Pass it as an argument instead, or wait outside, before the call: value = y\.result\(\)\.",
            text,
        )
        for call in pw.jit(waits, on=left), pw.program(pw.jit(waits, on=left)):
            assert "the computation 'waits' waits for the future " in refused(pw.UsageError, lambda call=call: call(v))
        assert pw.program(lambda x: pw.jit(double, on=left)(x))(v).shape == (8,)


def test_a_captured_device_array_is_named(a) -> None:
    weights = a(v).array()

    @pw.program
    def f(x):
        return a(x) + weights

    assert refused(pw.UsageError, lambda: f(v)) == (
        "the program 'f' uses the device array 'weights' from outside. Pass it as an argument of 'f' instead."
    )


def test_a_device_array_captured_by_a_computation_is_named(a, left) -> None:
    weights = a(v).array()
    f = pw.jit(lambda x: x + weights, on=left)
    text = refused(pw.UsageError, lambda: pw.program(lambda x: f(x))(v))
    assert "uses the device array 'weights' from outside" in text


# ---- transformations outside a program


@pytest.mark.parametrize(
    ("wrap", "under", "instead"),
    [
        (lambda f: jax.grad(lambda v: f(v).sum()), "jax.grad", "pw.program(jax.grad(f))"),
        (jax.jit, "jax.jit or another trace", "pw.program(f)"),
        (jax.vmap, "jax.vmap", "pw.program(jax.vmap(f))"),
    ],
    ids=["grad", "jit", "vmap"],
)
def test_a_computation_under_a_transformation_shows_the_right_nesting(a, wrap, under, instead) -> None:
    text = refused(pw.UsageError, lambda: wrap(a)(v))
    assert text == (
        f"double is called under {under} outside a program, where it has no place in a graph. "
        f"Turn the nesting round: {instead}, with f the function that was transformed."
    )


def test_a_program_under_a_transformation_shows_the_right_nesting(a) -> None:
    @pw.program
    def loss(v):
        return a(v).sum()

    assert "round: pw.program(jax.grad(f)), with f" in refused(pw.UsageError, lambda: jax.grad(loss)(v))
    np.testing.assert_array_equal(pw.program(jax.grad(loss.fn))(v).result(), np.full(8, 2.0))


def test_the_right_nesting_works(a) -> None:
    f = pw.program(jax.grad(lambda v: a(v).sum()))
    np.testing.assert_array_equal(f(v).result(), np.full(8, 2.0))


def test_the_nesting_that_an_error_shows_works(a) -> None:
    """``pw.program(jax.grad(loss))`` with ``loss`` a program itself, as the error says."""

    @pw.program
    def loss(v):
        return a(v).sum()

    np.testing.assert_array_equal(pw.program(jax.grad(loss))(v).result(), np.full(8, 2.0))


# ---- failures at run time


def failing(place, name: str = "explode"):
    """A computation whose host callback raises when its input is negative."""

    def check(x):
        if (x < 0).any():
            raise ValueError("negative input")
        return x

    def explode(v):
        return jax.pure_callback(check, jax.ShapeDtypeStruct(v.shape, v.dtype), v)

    explode.__name__ = name
    return pw.jit(explode, on=place)


@pytest.fixture
def quiet_callbacks(caplog):
    """JAX logs the traceback of a callback that raises."""
    import logging

    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("devices", [1, 4])
def test_a_runtime_failure_names_node_program_place_devices_and_line(controller, quiet_callbacks, devices) -> None:
    place = pw.virtual_slice(devices, island=1, name="spot")
    explode = failing(place)

    @pw.program
    def step(v):
        return explode(v)

    np.testing.assert_array_equal(step(v).result(), v)
    which = "device 0" if devices == 1 else "devices 0–3"
    for _ in range(2):
        y = step(-v - 1)
        text = refused(pw.NodeError, y.result)
        pattern = rf"^explode of step, run \d+, failed on spot \(island 1, {which}\) \(test_bad_input.py:\d+\): "
        assert re.match(pattern, text), text
        assert "negative input" in text
        assert repr(y) == "<future step: float32[8], failed>"
        assert y.done()
    np.testing.assert_array_equal(step(v).result(), v)


def test_dependents_fail_with_the_same_error_and_others_are_fine(controller, left, right, quiet_callbacks, b) -> None:
    explode = failing(left)

    @pw.program
    def step(v):
        bad = explode(-v - 1)
        return bad, b(bad), b(b(bad)), b(v)

    bad, moved, further, fine = step(v)
    np.testing.assert_array_equal(fine.result(), v + 1)
    texts = {refused(pw.NodeError, y.result) for y in (bad, moved, further)}
    assert len(texts) == 1
    assert texts.pop().startswith("explode of step, run ")


def test_later_programs_fail_with_the_same_error(controller, left, a, b, quiet_callbacks) -> None:
    explode = failing(left)
    bad = explode(-v - 1)
    later = pw.program(lambda x: b(a(x)))(bad)
    assert refused(pw.NodeError, later.result).startswith("explode of explode, run ")
    assert refused(pw.NodeError, bad.result) == refused(pw.NodeError, later.result)


def test_a_failure_is_recorded_and_counted(controller, left, quiet_callbacks) -> None:
    explode = failing(left)
    with pw.record() as run:
        y = explode(-v - 1)
    refused(pw.NodeError, y.result)
    assert "failed" in set(run.events.of_kind("compute")["status"])
    assert run.summary().failed >= 1


def test_an_execution_that_fails_frees_what_it_held(controller, left, quiet, quiet_callbacks) -> None:
    explode = failing(left)
    bad = explode(-v - 1)
    refused(pw.NodeError, bad.result)
    del bad
    gc.collect()  # an error's traceback holds the frames that it went through
    quiet(controller)
    assert not controller.driver.entries


def test_an_unknown_kind_or_mode() -> None:
    assert refused(pw.UsageError, lambda: pw.attach("cpus")) == (
        "attach(kind='cpus'): choose one of 'auto', 'cpu', 'gpu', 'tpu', 'sim', 'ray'. "
        "Did you mean 'cpu' or 'tpu' or 'gpu'?"
    )
    assert refused(pw.UsageError, lambda: pw.attach("cpu", dispatch="fast")) == (
        "attach(dispatch='fast'): choose one of 'parallel', 'sequential'."
    )
    for option in ({"islands": 0}, {"devices_per_island": -1}, {"islands": True}, {"devices_per_island": 0}):
        ((name, value),) = option.items()
        assert refused(pw.PlaceError, lambda option=option: pw.attach("cpu", **option)) == (
            f"attach({name}={value!r}): a whole number of at least 1 is needed."
        )


@pytest.mark.parametrize("islands", [1.5, "2", [[0], 1]])
def test_a_number_of_islands_that_is_none(islands) -> None:
    assert "attach(islands=" in refused(pw.PlaceError, lambda: pw.attach("cpu", islands=islands))


def test_accelerators_that_are_not_there() -> None:
    text = refused(pw.UsageError, lambda: pw.attach("tpu"))
    assert text.startswith('attach("tpu"): JAX sees no accelerator here. Use pw.attach("cpu") or pw.attach("auto"). ')
