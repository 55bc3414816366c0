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
from tests.support.closeness import close
from tests.support.computations import HANG_GUARD, names, on, v

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

    assert repr(chain.graph(v)) == "<graph chain: 4 nodes: double@left, increment@right>"
    assert chain.graph(v).sentence == "chain has 2 nodes on 2 virtual slices"
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

    close(f(v), np.sin(v * 4 + 1) + 1)
    assert names(f.graph(v)) == ["double@left", "mul +2 ops@left", "increment@right"]


def test_operations_stand_where_most_of_their_bytes_are(a, b, left) -> None:
    total = pw.jit(jnp.sum, on=left)

    @pw.program
    def f(v):
        return b(v) * total(v)

    close(f(v), (v + 1) * v.sum())
    assert names(f.graph(v))[-1] == "mul@right"


def test_operations_on_arguments_alone_are_repeated_where_they_are_used(a, b) -> None:
    @pw.program
    def f(v, step):
        rate = 1.0 / (step + 1)
        return a(v) * rate, b(v) * rate

    close(f(v, 3), (v * 2 / 4, (v + 1) / 4))
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

    close(f(v), (v * 2 + 2, (v * 2 + 1) * ((v * 2 + 1) * 2)))
    graph = f.graph(v)
    needs = {node.id: set(node.inputs) for node in graph.nodes}
    makers = graph.producer()
    (first,) = [n for n in graph.nodes if n.kind == "operations" and n.parts == ("add",)]
    assert {graph.nodes[makers[value]].name for value in needs[first.id]} == {"double"}


def test_a_program_without_any_computation_runs(controller) -> None:
    close(pw.program(lambda v: {"out": v * 2 + 1})(v), {"out": v * 2 + 1})


@pytest.mark.parametrize("fn", [lambda v: v, lambda v: (), lambda v: (v, v)])
def test_a_program_that_does_nothing_runs(controller, fn) -> None:
    close(pw.program(fn)(v), fn(v))


def test_a_program_whose_computations_are_all_unused_runs(a) -> None:
    close(pw.program(lambda v: (a(v), v)[1])(v), v)


def test_a_long_chain_of_operations_on_an_argument(a) -> None:
    def f(v, t):
        for _ in range(400):
            t = t + 1
        return a(v) * t

    close(pw.program(f)(v, 1.0), v * 2 * 401)


def test_nothing_warns_on_the_way(a) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(pw.program(lambda v: a(v) + 1)(v), v * 2 + 1)


# ---- results


def test_an_argument_may_be_a_result(a, b) -> None:
    close(pw.program(lambda v, w: (w, a(v), v))(v, v + 1), (v + 1, v * 2, v))


def test_a_constant_may_be_a_result(a) -> None:
    close(pw.program(lambda v: (1.0, a(v), jnp.ones(3), np.arange(2)))(v), (1.0, v * 2, np.ones(3), np.arange(2)))


def test_the_same_value_may_be_a_result_twice(a) -> None:
    @pw.program
    def f(v):
        y = a(v)
        return y, {"again": y}, y

    one, two, three = f(v)
    del one
    close((two, three), ({"again": v * 2}, v * 2))


def test_unused_arguments_and_unused_results_cost_nothing(a, b) -> None:
    @pw.program
    def f(v, unused):
        b(v)
        return a(v)

    close(f(v, v), v * 2)
    assert names(f.graph(v, v)) == ["double@left"]


def test_the_same_computation_twice(a, b) -> None:
    f = pw.program(lambda v: b(a(a(v))) + b(a(v)))
    close(f(v), v * 4 + 1 + v * 2 + 1)
    assert len(names(f.graph(v))) == 6


def test_a_program_in_a_program_is_inlined(a, b) -> None:
    inner = pw.program(lambda v, n: a(v) * n, static_argnums=1)
    outer = pw.program(lambda v: b(inner(v, 3)))
    close(outer(v), v * 6 + 1)
    assert names(outer.graph(v)) == ["double@left", "mul@left", "increment@right"]


def test_a_computation_may_be_made_a_program(a) -> None:
    f = pw.program(a)
    close(f(v), v * 2)
    assert names(f.graph(v)) == ["double@left"]
    donating = pw.program(a, donate_argnums=0)
    w = a(v)
    donating(w)
    with pytest.raises(pw.LostError):
        w.result()


def test_a_program_may_be_made_a_program_with_other_options(a) -> None:
    inner = pw.program(lambda v, n: a(v) * n, static_argnums=1)
    close(pw.program(inner)(v, 3.0), v * 6)
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
    close(out, (Pair(v * 4, [v + 1, v + 2]), {"other": v + 1}))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    w: object
    name: str = dataclasses.field(metadata={"static": True}, default="")


def test_registered_dataclasses(a) -> None:
    out = pw.program(lambda s: State(a(s.w), s.name + "!"))(State(v, "net"))
    assert out.name == "net!"
    close(out.w, v * 2)


def test_none_in_a_tree_is_no_argument(a, left) -> None:
    f = pw.jit(lambda t: t["w"] * 2, on=left)
    close(pw.program(lambda t: f(t))({"w": v, "bias": None}), v * 2)


def test_static_arguments_choose_the_program(a, b) -> None:
    @functools.partial(pw.program, static_argnames="where")
    def f(v, where):
        return a(v) if where == "left" else b(v)

    close(f(v, where="left"), v * 2)
    close(f(v, "right"), v + 1)
    assert names(f.graph(v, "right")) == ["increment@right"]
    with pytest.raises(pw.UsageError, match="a static argument must be hashable, got"):
        f(v, ["left"])


def test_closed_over_constants_of_every_kind(a, b, left) -> None:
    numpy, uncommitted, number = np.full(8, 3.0, np.float32), jnp.arange(8.0), 0.5
    c = pw.jit(lambda v: v * numpy + uncommitted * number, on=left, in_shardings=pw.P("x"))
    f = pw.program(lambda v: b(c(v)) + numpy * uncommitted)
    close(f(v), v * 3 + v * 0.5 + 1 + 3 * v)


def test_large_constants_that_differ_are_told_apart(left) -> None:
    """Programs that lower to the same text but hold other constants must not share an executable."""
    for number in (1.0, 2.0):
        constant = np.full((64, 64), number, np.float32)
        constant[0, 0] = 7
        f = pw.jit(lambda v, c=constant: v + jnp.asarray(c).sum() + jnp.asarray(c)[1, :8], on=left)
        g = pw.jit(lambda v: v + jnp.asarray(constant).sum() + jnp.asarray(constant)[1, :8], on=left)
        expected = v + constant.sum() + number
        close(g(v), expected)
        close(f(v), expected)


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
        close(drawn, jax.random.normal(mine, (8,)))
        assert jax.random.key_data(key.result()).tolist() == jax.random.key_data(plain).tolist()
        assert jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)


def test_typed_keys_move_to_a_place_of_another_size(left) -> None:
    split = pw.jit(lambda key: tuple(jax.random.split(key)), on=left)
    narrow = pw.jit(lambda key: jax.random.uniform(key, (4,)), on=pw.virtual_slice(2, island=1))
    expected = jax.random.uniform(jax.random.split(jax.random.key(1))[0], (4,))
    close(pw.program(lambda key: narrow(split(key)[0]))(jax.random.key(1)), expected)
    close(narrow(pw.put(jax.random.key(1), on=left)), jax.random.uniform(jax.random.key(1), (4,)))


def test_a_closed_over_key(left) -> None:
    key = jax.random.key(5)
    close(pw.jit(lambda v: v + jax.random.normal(key, (8,)), on=left)(v), v + jax.random.normal(key, (8,)))


# ---- moving between places


@pytest.mark.parametrize(("source", "target"), [(4, 2), (2, 4), (4, 1), (1, 4), (3, 2), (4, 4)])
def test_values_move_between_places_of_any_size(controller, source, target) -> None:
    one, two = pw.virtual_slice(source, island=0), pw.virtual_slice(target, island=1)
    values = np.arange(12, dtype=np.float32)
    there, back = on(two, lambda v: v + 1), on(one, lambda v: v * 2)
    close(pw.program(lambda v: back(there(back(v))))(values), (values * 2 + 1) * 2)
    close(back(there(values)), (values + 1) * 2)


def test_moves_are_marked_ici_or_dcn_with_their_bytes(controller) -> None:
    near, beside, far = (pw.virtual_slice(2, island=i) for i in (0, 0, 1))
    steps = [on(place, lambda v: v + 1) for place in (near, beside, far)]
    f = pw.program(lambda v: steps[2](steps[1](steps[0](v))))
    with pw.record() as run:
        close(f(v), v + 3)
    moves = [(r["route"], r["bytes"]) for r in run.events.of_kind("transfer")]
    assert sorted(moves) == [("DCN", 32), ("ICI", 32), ("host", 32)]


def test_slices_that_share_devices_need_no_move(controller, left) -> None:
    also = pw.virtual_slice(4, island=0)
    one, two = on(left, lambda v: v * 2), on(also, lambda v: v + 1)
    close(pw.program(lambda v: two(one(v)))(v), v * 2 + 1)


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
        close(loss, expected)
    close(mine, theirs)
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


@pytest.mark.parametrize(
    ("use", "does"),
    [
        (lambda y: float(y.sum()), "turns into a host value"),
        (np.asarray, "turns into a host value"),
        (lambda y: y.result(), "asks for"),
        (lambda y: y if y.sum() > 0 else y + 1, "branches on"),
    ],
)
def test_a_program_that_needs_a_value_says_where_and_what_to_do(controller, left, use, does) -> None:
    add = on(left, lambda x: x + 1)

    @pw.program
    def needs(x):
        use(add(x))
        return x

    with pytest.raises(pw.UsageError) as error:
        needs(np.zeros(8, np.float32))
    text = str(error.value)
    assert f"the program 'needs' {does} a value that is not known while it is traced (test_programs.py:" in text
    assert "branch in a cell, outside the program, on y.result()" in text
