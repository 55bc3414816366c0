"""Programs: what is traced, what becomes a node and where, and that every value equals plain JAX's."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pathways_nb as pw

v = np.arange(8, dtype=np.float32)


def same(result, expected, **tolerance) -> None:
    """Equal to float32 accuracy, leaf by leaf."""
    close = functools.partial(np.testing.assert_allclose, **{"rtol": 1e-5, "atol": 1e-6, **tolerance})
    jax.tree.map(close, pw.get(result), jax.tree.map(np.asarray, expected))


def on(place, fn, spec="x", **options):
    """``fn`` on a place, sharded along its first axis on the way in and out."""
    return pw.jit(fn, on=place, in_shardings=pw.P(spec), out_shardings=pw.P(spec), **options)


def first_shard(future: pw.Future) -> int:
    """Where the first shard lies in memory."""
    return future.array().addressable_shards[0].data.unsafe_buffer_pointer()


def names(graph: pw.Graph) -> list[str]:
    """``name@place`` of each node that runs, in order."""
    return [f"{node.name}@{node.place.label}" for node in graph.nodes if node.place is not None]


@pytest.fixture
def a(left):
    return on(left, lambda v: v * 2)


@pytest.fixture
def b(right):
    return on(right, lambda v: v + 1)


# ---- the paper's Figure 2


def figure_2(size: int):
    """The program of Pathways, Figure 2, on places of ``size`` devices."""

    def get_devices(n):
        return pw.virtual_slice(n)

    a = on(get_devices(size), lambda x: x * 2)
    b = on(get_devices(size), lambda x: x + 1)
    c = on(get_devices(size), lambda x: x / 2)

    @pw.program
    def f(v):
        x = a(v)
        y = b(x)
        z = a(c(x))
        return (y, z)

    return f


def test_figure_2(controller) -> None:
    f = figure_2(2)
    y, z = f(np.array([1.0, 2.0]))
    assert (list(y.result()), list(z.result())) == ([3.0, 5.0], [2.0, 4.0])
    assert len(set(map(str, controller.resources.placements.values()))) == 3


def test_figure_2_has_the_same_graph_at_2_and_at_64_devices_a_place(controller) -> None:
    small = figure_2(2).graph(np.ones(2, np.float32))
    with pw.attach("cpu", islands=2, devices_per_island=64):
        large = figure_2(64).graph(np.ones(64, np.float32))
    assert len(small.nodes) == len(large.nodes) == 6
    assert [n.kind for n in small.nodes] == ["argument", *["computation"] * 4, "result"]
    shape = lambda graph: [(e.source, e.target, len(e.values)) for e in graph.edges()]  # noqa: E731
    assert shape(small) == shape(large)
    assert pw.attach("cpu", islands=2, devices_per_island=4) is controller


def test_a_chain_over_n_shards_is_four_nodes(a, b) -> None:
    graph = pw.program(lambda v: b(a(v))).graph(v)
    assert [(e.source, e.target, e.bytes) for e in graph.edges()] == [(0, 1, 32), (1, 2, 32), (2, 3, 32)]


def test_a_graph_says_what_it_is(a, b) -> None:
    @pw.program
    def chain(v):
        return b(a(v))

    assert repr(chain.graph(v)) == "<graph chain: 4 nodes: <lambda>@left, <lambda>@right>"
    node = chain.graph(v).nodes[1]
    assert node.line.startswith("test_programs.py:")
    assert str(chain.graph(v).values[0]) == "float32[8]"
    assert [node.name for node in chain.graph(v).nodes if node.kind == "argument"] == ["v"]


# ---- ordinary operations between computations


def test_operations_between_become_one_node_where_their_operands_live(a, b) -> None:
    @pw.program
    def f(v):
        y = a(v)
        y = jnp.sin(y * 2 + 1)
        return b(y)

    same(f(v), np.sin(v * 4 + 1) + 1)
    assert names(f.graph(v)) == ["<lambda>@left", "mul +2 ops@left", "<lambda>@right"]


def test_operations_stand_where_most_of_their_bytes_are(a, b, left) -> None:
    total = pw.jit(jnp.sum, on=left)

    @pw.program
    def f(v):
        return b(v) * total(v)

    same(f(v), (v + 1) * v.sum())
    assert names(f.graph(v))[-1] == "mul@right"


def test_operations_on_arguments_alone_are_repeated_where_they_are_used(a, b) -> None:
    @pw.program
    def f(v, step):
        rate = 1.0 / (step + 1)
        return a(v) * rate, b(v) * rate

    same(f(v, 3), (v * 2 / 4, (v + 1) / 4))
    graph = f.graph(v, 3)
    assert all(edge.source == 0 or graph.nodes[edge.source].place is graph.nodes[edge.target].place
               for edge in graph.edges() if graph.nodes[edge.target].place is not None
               and graph.nodes[edge.source].place is not None)  # fmt: skip


def test_a_merged_node_never_waits_for_what_it_does_not_need(a, b) -> None:
    """``y + 1`` must not join a node that needs ``b``'s result, or it would wait for the other island."""

    @pw.program
    def f(v):
        y = a(v)
        first = y + 1
        back = b(y)
        return b(first), first * a(back)

    same(f(v), (v * 2 + 2, (v * 2 + 1) * ((v * 2 + 1) * 2)))
    graph = f.graph(v)
    needs = {node.id: set(node.inputs) for node in graph.nodes}
    makers = graph.producer()
    (first,) = [n for n in graph.nodes if n.kind == "operations" and n.parts == ("add",)]
    assert {graph.nodes[makers[value]].name for value in needs[first.id]} == {"<lambda>"}


def test_a_program_without_any_computation_runs(controller) -> None:
    same(pw.program(lambda v: {"out": v * 2 + 1})(v), {"out": v * 2 + 1})


@pytest.mark.parametrize("fn", [lambda v: v, lambda v: (), lambda v: (v, v)])
def test_a_program_that_does_nothing_runs(controller, fn) -> None:
    same(pw.program(fn)(v), fn(v))


def test_a_program_whose_computations_are_all_unused_runs(a) -> None:
    same(pw.program(lambda v: (a(v), v)[1])(v), v)


def test_a_long_chain_of_operations_on_an_argument(a) -> None:
    def f(v, t):
        for _ in range(400):
            t = t + 1
        return a(v) * t

    same(pw.program(f)(v, 1.0), v * 2 * 401)


def test_nothing_warns_on_the_way(a) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(pw.program(lambda v: a(v) + 1)(v), v * 2 + 1)


# ---- results


def test_an_argument_may_be_a_result(a, b) -> None:
    same(pw.program(lambda v, w: (w, a(v), v))(v, v + 1), (v + 1, v * 2, v))


def test_a_constant_may_be_a_result(a) -> None:
    same(pw.program(lambda v: (1.0, a(v), jnp.ones(3), np.arange(2)))(v), (1.0, v * 2, np.ones(3), np.arange(2)))


def test_the_same_value_may_be_a_result_twice(a) -> None:
    @pw.program
    def f(v):
        y = a(v)
        return y, {"again": y}, y

    one, two, three = f(v)
    del one
    same((two, three), ({"again": v * 2}, v * 2))


def test_unused_arguments_and_unused_results_cost_nothing(a, b) -> None:
    @pw.program
    def f(v, unused):
        b(v)
        return a(v)

    same(f(v, v), v * 2)
    assert names(f.graph(v, v)) == ["<lambda>@left"]


def test_the_same_computation_twice(a, b) -> None:
    f = pw.program(lambda v: b(a(a(v))) + b(a(v)))
    same(f(v), v * 4 + 1 + v * 2 + 1)
    assert len(names(f.graph(v))) == 6


def test_a_program_in_a_program_is_inlined(a, b) -> None:
    inner = pw.program(lambda v, n: a(v) * n, static_argnums=1)
    outer = pw.program(lambda v: b(inner(v, 3)))
    same(outer(v), v * 6 + 1)
    assert names(outer.graph(v)) == ["<lambda>@left", "mul@left", "<lambda>@right"]


def test_a_computation_may_be_made_a_program(a) -> None:
    f = pw.program(a)
    same(f(v), v * 2)
    assert names(f.graph(v)) == ["<lambda>@left"]
    donating = pw.program(a, donate_argnums=0)
    w = a(v)
    donating(w)
    with pytest.raises(pw.LostError):
        w.result()


def test_a_program_may_be_made_a_program_with_other_options(a) -> None:
    inner = pw.program(lambda v, n: a(v) * n, static_argnums=1)
    same(pw.program(inner)(v, 3.0), v * 6)
    outer = pw.program(inner, name="outer")
    assert outer.name == "outer"


# ---- arguments


class Pair(NamedTuple):
    first: object
    second: object


def test_trees_and_keywords(a, b) -> None:
    @pw.program
    def f(tree, *rest, scale=1.0, **more):
        return Pair(a(tree["x"]) * scale, [b(r) for r in rest]), {k: w + 1 for k, w in more.items()}

    out = f({"x": v}, v, v + 1, scale=2.0, other=v)
    assert isinstance(out[0], Pair)
    same(out, (Pair(v * 4, [v + 1, v + 2]), {"other": v + 1}))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    w: object
    name: str = dataclasses.field(metadata={"static": True}, default="")


def test_registered_dataclasses(a) -> None:
    out = pw.program(lambda s: State(a(s.w), s.name + "!"))(State(v, "net"))
    assert out.name == "net!"
    same(out.w, v * 2)


def test_none_in_a_tree_is_no_argument(a, left) -> None:
    f = pw.jit(lambda t: t["w"] * 2, on=left)
    same(pw.program(lambda t: f(t))({"w": v, "bias": None}), v * 2)


def test_static_arguments_choose_the_program(a, b) -> None:
    @functools.partial(pw.program, static_argnames="where")
    def f(v, where):
        return a(v) if where == "left" else b(v)

    same(f(v, where="left"), v * 2)
    same(f(v, "right"), v + 1)
    assert names(f.graph(v, "right")) == ["<lambda>@right"]
    with pytest.raises(pw.UsageError, match="a static argument must be hashable, got"):
        f(v, ["left"])


def test_closed_over_constants_of_every_kind(a, b, left) -> None:
    numpy, uncommitted, number = np.full(8, 3.0, np.float32), jnp.arange(8.0), 0.5
    c = pw.jit(lambda v: v * numpy + uncommitted * number, on=left, in_shardings=pw.P("x"))
    f = pw.program(lambda v: b(c(v)) + numpy * uncommitted)
    same(f(v), v * 3 + v * 0.5 + 1 + 3 * v)


def test_large_constants_that_differ_are_told_apart(left) -> None:
    """Programs that lower to the same text but hold other constants must not share an executable."""
    for number in (1.0, 2.0):
        constant = np.full((64, 64), number, np.float32)
        constant[0, 0] = 7
        f = pw.jit(lambda v, c=constant: v + jnp.asarray(c).sum() + jnp.asarray(c)[1, :8], on=left)
        g = pw.jit(lambda v: v + jnp.asarray(constant).sum() + jnp.asarray(constant)[1, :8], on=left)
        expected = v + constant.sum() + number
        same(g(v), expected)
        same(f(v), expected)


def test_typed_keys_as_arguments_results_and_across_islands(controller, left, right) -> None:
    split = pw.jit(lambda key: tuple(jax.random.split(key)), on=left)
    draw = pw.jit(lambda key, shape: jax.random.normal(key, shape), on=right, static_argnums=1)

    @pw.program
    def f(key):
        key, mine = split(key)
        return key, draw(mine, (8,))

    plain = key = jax.random.key(3)
    for _ in range(3):  # the first key is JAX's own, the others are futures
        key, drawn = f(key)
        plain, mine = jax.random.split(plain)
        same(drawn, jax.random.normal(mine, (8,)))
        assert jax.random.key_data(key.result()).tolist() == jax.random.key_data(plain).tolist()
        assert jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)


def test_typed_keys_move_to_a_place_of_another_size(left) -> None:
    split = pw.jit(lambda key: tuple(jax.random.split(key)), on=left)
    narrow = pw.jit(lambda key: jax.random.uniform(key, (4,)), on=pw.virtual_slice(2, island=1))
    expected = jax.random.uniform(jax.random.split(jax.random.key(1))[0], (4,))
    same(pw.program(lambda key: narrow(split(key)[0]))(jax.random.key(1)), expected)
    same(narrow(pw.put(jax.random.key(1), on=left)), jax.random.uniform(jax.random.key(1), (4,)))


def test_a_closed_over_key(left) -> None:
    key = jax.random.key(5)
    same(pw.jit(lambda v: v + jax.random.normal(key, (8,)), on=left)(v), v + jax.random.normal(key, (8,)))


# ---- donation


def test_donated_arguments_are_taken_over(left) -> None:
    step = on(left, lambda w: w + 1)
    f = pw.program(lambda w: step(w), donate_argnums=0)
    start = step(v - 1)  # what was put may share the user's own memory, which cannot be taken over
    memory = first_shard(start)
    out = f(start)
    assert first_shard(out) == memory
    same(out, v + 1)


def test_donating_by_name_in_trees_and_in_a_loop(a, left) -> None:
    step = pw.jit(lambda p, x: jax.tree.map(lambda w: w + x.sum(), p), on=left)

    @functools.partial(pw.program, donate_argnames="params")
    def f(params, x):
        return step(params, x)

    params = {"w": v, "b": [v + 1]}
    for _ in range(20):
        params = f(params, v)
    same(params, {"w": v + 20 * v.sum(), "b": [v + 1 + 20 * v.sum()]}, rtol=1e-4)


def test_nodes_traced_earlier_read_a_donated_argument_first(a, left) -> None:
    """``w`` is read by two programs already queued and by an earlier node of the same program, then taken over."""
    slow = on(left, lambda w: jax.lax.fori_loop(0, 200, lambda i, x: jnp.sin(x) + x * 0, w))
    take = on(left, lambda w: w - 1, donate_argnums=0)
    w = pw.put(v, on=left, shardings=pw.P("x"))
    before = [slow(w), slow(w)]
    f = pw.program(lambda w: (a(w), take(w)), donate_argnums=0)
    out = f(w)
    same(out, (v * 2, v - 1))
    expected = jax.lax.fori_loop(0, 200, lambda i, x: jnp.sin(x), v)
    same(before, [expected, expected])


def test_donating_numpy_leaves_the_users_array_alone(left) -> None:
    mine = v.copy()
    step = on(left, lambda w: w + 1)
    f = pw.program(lambda w: step(w), donate_argnums=0)
    same(f(mine), v + 1)
    assert mine.tolist() == v.tolist()


HANG_GUARD = """
    import faulthandler, numpy as np, jax, jax.numpy as jnp, pathways_nb as pw
    faulthandler.dump_traceback_later(12, exit=True)
    pw.attach("cpu", islands=2, devices_per_island=4)
    left, right = pw.virtual_slice(4, island=0), pw.virtual_slice(4, island=1)
    a = pw.jit(lambda v: v * 2, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    b = pw.jit(lambda v: v + 1, on=right, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    v = np.arange(8, dtype=np.float32)
"""


def test_a_donated_argument_may_be_used_at_two_places(fresh_python) -> None:
    done = fresh_python(
        HANG_GUARD
        + """
    f = pw.program(lambda w: (a(w), b(w)), donate_argnums=0)
    w = pw.put(v, on=left, shardings=pw.P("x"))
    x, y = f(w)
    assert x.result().tolist() == (v * 2).tolist() and y.result().tolist() == (v + 1).tolist()
    """
    )
    assert done.returncode == 0, done.stderr[-500:]


def test_a_donated_argument_may_be_used_by_two_slices_that_share_devices(fresh_python) -> None:
    done = fresh_python(
        HANG_GUARD
        + """
    c = pw.jit(lambda v: v - 1, on=pw.virtual_slice(4, island=0), in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    f = pw.program(lambda w: (a(w), c(w)), donate_argnums=0)
    x, y = f(pw.put(v, on=left, shardings=pw.P("x")))
    assert x.result().tolist() == (v * 2).tolist() and y.result().tolist() == (v - 1).tolist()
    """
    )
    assert done.returncode == 0, done.stderr[-500:]


def test_a_future_passed_twice_and_donated_is_refused(fresh_python) -> None:
    done = fresh_python(
        HANG_GUARD
        + """
    f = pw.program(lambda w, u: a(w) + u, donate_argnums=0)
    w = pw.put(v, on=left, shardings=pw.P("x"))
    try:
        f(w, w).result()
    except pw.UsageError as error:
        assert "donated" in str(error) and "twice" in str(error), error
    else:
        raise SystemExit("not refused")
    assert w.result().tolist() == v.tolist()
    """
    )
    assert done.returncode == 0, done.stderr[-500:] + done.stdout


def test_a_donor_on_another_island_is_woken_by_the_last_reader(fresh_python) -> None:
    done = fresh_python(
        HANG_GUARD
        + """
    spin = pw.jit(lambda v: jax.lax.fori_loop(0, 60, lambda i, m: jnp.tanh(m @ m), v), on=left)
    spin(np.ones((256, 256), np.float32)).result()
    read = pw.program(lambda v, m: (a(v), spin(m)))
    take = pw.program(lambda v: b(v), donate_argnums=0)
    w = pw.put(v, on=left, shardings=pw.P("x"))
    read(w, np.ones((256, 256), np.float32)); take(v)
    pw.wait(w)
    w = pw.put(v, on=left, shardings=pw.P("x"))
    for _ in range(30):
        spin(np.ones((256, 256), np.float32))
    a(w)
    assert take(w).result().tolist() == (v + 1).tolist()
    """
    )
    assert done.returncode == 0, done.stderr[-500:]


def test_donating_a_result_that_is_an_argument_leaves_the_argument_alone(a, left) -> None:
    kept = pw.put(v, on=left, shardings=pw.P("x"))
    passed, _ = pw.program(lambda w: (w, a(w)))(kept)
    same(pw.program(lambda w: a(w), donate_argnums=0)(passed), v * 2)
    same(kept, v)


def test_donating_one_of_two_equal_results_leaves_the_other_alone(a, left) -> None:
    one, two = pw.program(lambda w: (lambda y: (y, y))(a(w)))(v)
    same(pw.program(lambda w: a(w), donate_argnums=0)(one), v * 4)
    same(two, v * 2)


# ---- replay


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
        same(f(v + 1), ((v + 1) * 2 + 1) * 3)
    assert len(run.events.of_kind(name)) == 0
    assert len(run.events.of_kind("compute")) == 3


def test_redefining_the_same_cell_compiles_nothing(controller, left, right) -> None:
    unique = 17.25

    def cell():
        a = pw.jit(lambda v: jnp.tanh(v) * unique, on=left, in_shardings=pw.P("x"))
        b = pw.jit(lambda v: jnp.cos(v) * unique, on=pw.virtual_slice(4, island=1), in_shardings=pw.P("x"))
        with pw.record() as run:
            same(pw.program(lambda v: b(a(v)))(v), np.cos(np.tanh(v) * unique) * unique, rtol=1e-4)
        return len(run.events.of_kind("compile"))

    assert [cell(), cell(), cell()] == [2, 0, 0]


def test_attaching_again_and_resetting_compile_nothing(controller) -> None:
    """Clients go back to a shelf; executables are found by content and devices."""
    scale = on(pw.virtual_slice(4, island=0), lambda v: v * 123.5)
    f = pw.program(lambda v: scale(v))
    same(f(v), v * 123.5)
    pw.reset()
    with pw.record() as run:
        same(f(v), v * 123.5)
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
    same(pw.program(lambda v: b(shared(v)))(v), v * 6 + 1)
    same(pw.program(lambda v: b(shared(v)) + 1)(v), v * 6 + 2)


def test_a_checkpointed_function_is_shared_by_programs(a, b) -> None:
    shared = jax.checkpoint(lambda v: a(v) * 3)
    same(pw.program(lambda v: b(shared(v)))(v), v * 6 + 1)
    same(pw.program(jax.grad(lambda v: jnp.sum(b(shared(v)))))(v), np.full(8, 6.0))


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

    same(f(v), v * 2 + 1)
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
        same(f(v), v + number)


def test_custom_vjp_with_computations_inside(a, b) -> None:
    @jax.custom_vjp
    def h(v):
        return b(a(v))

    h.defvjp(lambda v: (b(a(v)), v), lambda saved, g: (a(g) * saved,))
    same(pw.program(h)(v), v * 2 + 1)
    same(pw.program(jax.grad(lambda v: jnp.sum(h(v))))(v), 2 * v)


def test_custom_jvp_with_computations_inside(a, b) -> None:
    @jax.custom_jvp
    def h(v):
        return b(a(v))

    h.defjvp(lambda primals, tangents: (b(a(primals[0])), a(tangents[0]) * 5))
    same(pw.program(jax.grad(lambda v: jnp.sum(h(v))))(v), np.full(8, 10.0))


def test_a_loop_cannot_hold_a_computation(a) -> None:
    @pw.program
    def f(v):
        return jax.lax.fori_loop(0, 3, lambda i, x: a(x), v)

    with pytest.raises(
        pw.UsageError, match=r"is called inside jax.lax.\w+ at test_programs.py:\d+: a computation is a node"
    ):
        f(v)
    same(pw.program(lambda v: a(a(a(v))))(v), v * 8)


def test_cond_on_a_traced_value_inside_a_computation(left) -> None:
    f = pw.jit(lambda v: jax.lax.cond(v.sum() > 0, lambda x: x, lambda x: -x, v), on=left)
    same(f(v), v)
    same(f(-v), v)


def test_a_users_jit_outlives_the_places_it_was_traced_with(controller) -> None:
    """A cell that defines places is run again; a helper of another cell, traced by JAX with the old ones, is not."""
    import gc

    cell: dict[str, object] = {}
    helper = jax.jit(lambda v: cell["a"](v) * 3)  # type: ignore[operator]
    for _ in range(2):
        cell["a"] = on(pw.virtual_slice(2), lambda v: v * 2)
        gc.collect()
        same(pw.program(lambda v: helper(v))(v), v * 6)


# ---- moving between places


@pytest.mark.parametrize(("source", "target"), [(4, 2), (2, 4), (4, 1), (1, 4), (3, 2), (4, 4)])
def test_values_move_between_places_of_any_size(controller, source, target) -> None:
    one, two = pw.virtual_slice(source, island=0), pw.virtual_slice(target, island=1)
    values = np.arange(12, dtype=np.float32)
    there, back = on(two, lambda v: v + 1), on(one, lambda v: v * 2)
    same(pw.program(lambda v: back(there(back(v))))(values), (values * 2 + 1) * 2)
    same(back(there(values)), (values + 1) * 2)


def test_moves_are_marked_ici_or_dcn_with_their_bytes(controller) -> None:
    near, beside, far = (pw.virtual_slice(2, island=i) for i in (0, 0, 1))
    steps = [on(place, lambda v: v + 1) for place in (near, beside, far)]
    f = pw.program(lambda v: steps[2](steps[1](steps[0](v))))
    with pw.record() as run:
        same(f(v), v + 3)
    moves = [(r["route"], r["bytes"]) for r in run.events.of_kind("transfer")]
    assert sorted(moves) == [("DCN", 32), ("ICI", 32), ("host", 32)]


def test_slices_that_share_devices_need_no_move(controller, left) -> None:
    also = pw.virtual_slice(4, island=0)
    one, two = on(left, lambda v: v * 2), on(also, lambda v: v + 1)
    same(pw.program(lambda v: two(one(v)))(v), v * 2 + 1)


# ---- Optax


def test_an_optax_update_inside_a_program_equals_plain_jax(controller, left, right) -> None:
    stage1, stage2 = (lambda w, x: jnp.tanh(x @ w)), (lambda w, h: jnp.mean((h @ w) ** 2))
    first = pw.jit(stage1, on=left, in_shardings=(pw.P(None, "x"), pw.P()))
    second = pw.jit(stage2, on=right, in_shardings=(pw.P(), pw.P(None, "x")))
    optimizer = optax.adamw(optax.linear_schedule(1e-2, 1e-3, 5))

    def training(one, two):
        def step(params, state, x):
            loss, grads = jax.value_and_grad(lambda p: two(p["two"], one(p["one"], x)))(params)
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state, loss

        return step

    params = {k: np.linspace(-1, s, 64, dtype=np.float32).reshape(8, 8) for k, s in (("one", 1), ("two", 2))}
    x = np.linspace(-1, 2, 32, dtype=np.float32).reshape(4, 8)
    ours, plain = pw.program(training(first, second)), jax.jit(training(stage1, stage2))
    mine = theirs = (params, optimizer.init(params))
    for _ in range(4):
        *mine, loss = ours(*mine, x)
        *theirs, expected = plain(*theirs, x)
        same(loss, expected)
    same(mine, theirs, rtol=1e-4)
    places = {n.place.label for n in ours.graph(*mine, x).nodes if n.kind == "operations"}
    assert places == {"left", "right"}, "each stage's update stands where its weights are"


def test_a_donated_optax_state(fresh_python) -> None:
    done = fresh_python(
        HANG_GUARD
        + """
    import optax
    optimizer = optax.adam(1e-2)
    @pw.program(donate_argnums=(0, 1))
    def step(params, state):
        grads = jax.grad(lambda p: jnp.sum(a(p[0]) ** 2) + jnp.sum(b(p[1]) ** 2))(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state
    params = [v, v]
    state = optimizer.init(params)
    for _ in range(3):
        params, state = step(params, state)
    pw.wait(params)
    """
    )
    assert done.returncode == 0, done.stderr[-500:]


def test_typed_keys_and_bare_numbers_do_not_share_an_executable(left) -> None:
    """Both lower to the same text; so do keys of two implementations."""
    sample = pw.jit(lambda k: jax.random.normal(k, (4,)), on=left)
    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        np.testing.assert_allclose(sample(key).result(), jax.random.normal(key, (4,)), rtol=1e-6)
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
