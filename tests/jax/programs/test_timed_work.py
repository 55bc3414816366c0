"""``pw.work``: values pass through, time passes, the graph's nodes say how long, and wrong arguments are refused."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.session.calls import submit
from tests.support.closeness import close
from tests.support.computations import names, v

pytestmark = pytest.mark.usefixtures("usual_effort")

work_module = sys.modules["pathways_nb.program.timed_work"]  # the name of the function hides that of its module
VALUES = [
    2.5,
    np.ones((2, 3), np.complex64),
    np.zeros((0, 2), np.float32),
    np.arange(8, dtype=np.int32),
    np.array([True, False]),
    np.array([np.nan, np.inf, 1.0], np.float32),
]


@pytest.mark.parametrize("x", VALUES, ids=lambda x: str(np.asarray(x).dtype))
def test_a_value_passes_through(left, x) -> None:
    y = pw.work(1e-5, on=left)(x)
    np.testing.assert_array_equal(y.result(), x)
    assert y.dtype == jnp.asarray(x).dtype


def test_without_an_argument_there_is_a_number_and_of_a_size_a_fresh_array(left) -> None:
    assert float(pw.work(1e-5, on=left)()) == 1.0
    sized = pw.work(1e-5, on=left, output_bytes=1000)
    for y in (sized(), sized(v)):
        assert (y.shape, y.dtype, y.sharding.spec) == ((252,), jnp.float32, pw.P("x"))
        assert set(y.result().tolist()) == {1.0}


def test_the_layout_of_an_argument_is_kept(left, right) -> None:
    sized, after = pw.work(1e-5, on=left, output_bytes=1024), pw.work(1e-5, on=right)
    y = pw.program(lambda: after(sized()))()
    assert (y.shape, y.sharding.spec) == ((256,), pw.P("x"))


def test_stages_chain_and_each_node_says_how_long_it_lasts(left, right) -> None:
    first, second = pw.work(2e-5, on=left, name="first"), pw.work(1.5e-4, on=right, name="second")
    assert (first.seconds, first.name, second.name, pw.work(1, on=left).name) == (2e-5, "first", "second", "work")
    chain = pw.program(lambda x: second(first(x)))
    graph = chain.graph(v)
    assert names(graph) == ["first@left", "second@right"]
    assert [node.seconds for node in graph.nodes] == [None, 2e-5, 1.5e-4, None]
    assert [event["kind"] for event in chain.run(v).events.of_kind("compute", "collective")] == ["compute", "compute"]
    close(second(first(v)), v)


def test_only_works_declare_a_time(a) -> None:
    assert a.seconds is None
    assert [node.seconds for node in pw.program(lambda x: a(x)).graph(v).nodes] == [None, None, None]


def test_it_composes_with_jaxs_transformations(left, right) -> None:
    first, second = pw.work(1e-5, on=left, name="first"), pw.work(1e-5, on=right, name="second")

    def loss(x):
        return second(first(x)).sum() * 3

    gradient = pw.program(jax.grad(loss))
    close(gradient(v), np.full(8, 3.0))
    backward = [node for node in gradient.graph(v).nodes if "(bwd)" in node.name]
    assert [(node.name, node.seconds) for node in backward] == [("second (bwd)", 1e-5), ("first (bwd)", 1e-5)]
    close(pw.program(jax.vmap(lambda x: second(first(x))))(v), v)


@pytest.mark.parametrize("size", [1, 4])
def test_eight_times_the_time_is_eight_times_the_iterations(controller, monkeypatch, size) -> None:
    """On the first device of the place, and none on the others."""
    place, counts, loop = pw.virtual_slice(size), list[np.ndarray](), work_module._loop

    def counted(iterations: jax.Array, seed: jax.Array) -> jax.Array:
        jax.debug.callback(lambda count: counts.append(np.asarray(count)), iterations)
        return loop(iterations, seed)

    monkeypatch.setattr(work_module, "seconds_per_iteration", lambda platform, place: 1e-6)
    monkeypatch.setattr(work_module, "_loop", counted)
    for seconds in (1e-5, 8e-5):
        pw.work(seconds, on=place)().wait()
    jax.effects_barrier()
    assert sorted(map(int, counts)) == [0] * (2 * size - 2) + [10, 80]


def test_an_iteration_is_timed_by_the_best_of_many_tries(monkeypatch) -> None:
    """Other work of the machine only adds: here it takes a second in each try but one."""
    now, began = [0.0], []

    def clock() -> float:
        began.append(now[0])
        now[0] += (0.25 if len(began) == 101 else 1.25) if len(began) % 2 else 0.0
        return began[-1]

    monkeypatch.setattr(work_module.time, "perf_counter", clock)
    assert work_module._measure(jax.devices("cpu")[0]) == pytest.approx(0.25 / 1000)


def test_the_all_reduce_has_the_size_asked_for(left, controller) -> None:
    def text(**options: int) -> str:
        program = pw.program(pw.work(1e-5, on=left, **options))
        program().wait()
        call = program.signature((), {})
        lowered = submit.compiled_plan(controller, submit.traced(controller, program, call), call)
        return str(lowered.actions[0].call.as_text())

    assert "f32[1024]{0} all-reduce" in text(collective_bytes=4096)
    assert "f32[1024]" not in text()


def test_none_is_optimised_away_where_several_are_one_node(left, controller) -> None:
    """Equal works in a row, and different ones side by side, are as many loops."""
    one, two = pw.work(1e-4, on=left, name="one"), pw.work(1e-4, on=left, name="two")
    sized = pw.work(1e-4, on=left, output_bytes=64)
    for body, count in (
        (lambda x: one(one(one(x))), 3),
        (lambda x: one(x) + two(x), 2),
        (lambda x: sized(sized(x)), 2),
    ):
        program = pw.program(body, fuse=True)
        program(v).wait()
        call = program.signature((v,), {})
        lowered = submit.compiled_plan(controller, submit.traced(controller, program, call), call)
        (launched,) = (action.call for action in lowered.actions if action.call is not None)
        assert launched.as_text().count(" while(") == count


@pytest.mark.parametrize("seconds", [0, -1e-3, float("nan"), float("inf"), "1 ms", True, None])
def test_a_time_that_is_none_is_refused(left, seconds) -> None:
    with pytest.raises(pw.UsageError) as error:
        pw.work(seconds, on=left)
    assert (
        str(error.value) == f"work(seconds={seconds!r}): a positive, finite number of seconds is needed, at most 1e+09."
    )


@pytest.mark.parametrize("option", ["collective_bytes", "output_bytes"])
@pytest.mark.parametrize("size", [-1, 1.5, float("inf"), "4 KB"])
def test_a_size_that_is_none_is_refused(left, option, size) -> None:
    with pytest.raises(pw.UsageError) as error:
        pw.work(1e-3, on=left, **{option: size})
    assert (
        str(error.value) == f"work({option}={size!r}): a whole number of bytes of at least 0 is needed, at most 1e+15."
    )


def test_a_place_that_is_none_is_refused() -> None:
    with pytest.raises(pw.UsageError, match=r"on=4 is an int; pass a pw.virtual_slice"):
        pw.work(1e-3, on=4)
