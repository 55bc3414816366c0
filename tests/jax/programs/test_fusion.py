"""Fused programs: the same values and gradients, fewer nodes, nobody waits longer, specs and donation hold inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.plan.plan import Placement, Plan
from pathways_nb.plan.plan_lowering import lower
from pathways_nb.program.fuse import fuse
from pathways_nb.program.items import Group, ProgramItem, constant
from pathways_nb.runtime.sim.makespan import makespan
from tests.support.closeness import close
from tests.support.computations import first_shard, names, on, v

# ---- which groups are fused: plain data


def groups_of(spec: list[tuple[int, list[int]]]) -> list[Group]:
    """Group ``i`` is at place ``spec[i][0]``, makes value ``i`` and reads the values ``spec[i][1]``."""
    body = constant(0.0, 0).jaxpr
    return [
        Group(place, [ProgramItem("add", tuple(reads), (i,), title=f"n{i}", jaxpr=body, place=place)])
        for i, (place, reads) in enumerate(spec)
    ]


def fused(spec: list[tuple[int, list[int]]]) -> list[list[int]]:
    """The groups by number, each as the numbers of its members."""
    return [[value for item in group.items for value in item.outputs] for group in fuse(groups_of(spec))]


@st.composite
def graphs(draw: Any) -> list[tuple[int, list[int]]]:
    """A random graph on two or three places, in program order."""
    count = draw(st.integers(1, 12))
    places = draw(st.integers(1, 3))
    return [
        (draw(st.integers(0, places - 1)), draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else [])
        for i in range(count)
    ]


def test_what_is_fused_and_what_is_not() -> None:
    assert fused([(0, []), (0, [0]), (0, [1])]) == [[0, 1, 2]], "a chain"
    assert fused([(0, []), (1, [0]), (0, [1])]) == [[0], [1], [2]], "another place is between"
    assert fused([(0, []), (1, [0]), (0, [0]), (1, [2])]) == [[0], [1], [2], [3]], "microbatches overlap"
    assert fused([(0, []), (1, []), (0, [0, 1])]) == [[0], [1], [2]], "the first need not wait for the other place"
    assert fused([(0, []), (1, []), (0, []), (1, [0, 2])]) == [[0, 2], [1], [3]], "read elsewhere after both"
    assert fused([(0, []), (0, []), (1, [0, 1]), (1, [2]), (0, [3])]) == [[0, 1], [2, 3], [4]]


def plan_of(groups: list[Group]) -> tuple[Plan, dict[int, float]]:
    """Each place is an island; a group lasts as many seconds as the numbers of its members say."""
    from pathways_nb.plan.graph import Graph, Node, Value
    from pathways_nb.plan.virtual_slice import VirtualSlice

    places = {place: VirtualSlice((1,), ("x",), serial=-100 - place) for place in {g.place for g in groups}}
    nodes, seconds = [], {}
    for i, group in enumerate(groups):
        outputs = tuple(v for item in group.items for v in item.outputs)
        inputs = tuple(dict.fromkeys(v for item in group.items for v in item.values() if v not in outputs))
        nodes.append(Node(i, "computation", group.name, places[group.place], inputs, outputs))
        seconds[i] = sum(1.0 + (37 * value) % 11 for value in outputs)
    nodes.append(Node(len(nodes), "result", "result", None, (), ()))
    values = tuple(Value(i, (), "float32", 4) for i in range(1 + max(v for node in nodes for v in node.outputs)))
    placements = {places[place].serial: Placement(i, 0, 1) for i, place in enumerate(sorted(places))}
    return lower(Graph("g", tuple(nodes), values), placements, (), next(iter(places.values()))), seconds


@given(graphs())
@settings(max_examples=300)
def test_random_graphs_keep_their_order_and_take_no_longer(spec) -> None:
    groups = groups_of(spec)
    found = fuse(groups)
    assert len(found) <= len(groups)
    assert sorted(v for g in found for item in g.items for v in item.outputs) == list(range(len(spec)))
    seen: set[int] = set()
    for group in found:
        for item in group.items:
            assert seen.issuperset(item.values()), "an item is made after what it reads, so there is no cycle"
            assert item.place == group.place
            seen.update(item.outputs)
    for place in {place for place, _ in spec}:
        order = [v for g in found if g.place == place for item in g.items for v in item.outputs]
        assert order == [i for i, (where, _) in enumerate(spec) if where == place], "the place's own order"
    assert makespan(*plan_of(found), "parallel") == pytest.approx(makespan(*plan_of(groups), "parallel"))
    assert len(fuse(found)) == len(found), "once is enough"


# ---- fused programs


def both(fn: Callable[..., Any], **options: Any) -> tuple[pw.Program, pw.Program]:
    """The program as it is and fused."""
    return pw.program(fn, **options), pw.program(fn, fuse=True, **options)


def test_a_chain_is_one_node_and_one_launch(a, left) -> None:
    add = on(left, lambda x: x + 1)

    def chain(x):
        for _ in range(128):
            x = add(x)
        return x

    plain, one = both(chain)
    assert names(one.graph(v)) == ["add ×128@left"]
    (node,) = (node for node in one.graph(v).nodes if node.place is not None)
    assert (node.kind, len(node.parts)) == ("computation", 128)
    run = one.run(v)
    assert run.summary().launches == 1
    close(run.outputs, v + 128)
    close(plain(v), v + 128)


def test_names_tell_the_parts(left, right) -> None:
    def named(name, place):
        fn = lambda x: x + 1  # noqa: E731
        fn.__name__ = name
        return on(place, fn)

    a, b, c, d, e = (named(name, left) for name in "abcde")
    f = named("f", right)
    assert names(pw.program(lambda x: b(a(x)) * 2, fuse=True).graph(v)) == ["a + b + mul@left"]
    assert names(pw.program(lambda x: a(b(a(x))), fuse=True).graph(v)) == ["a ×2 + b@left"]
    assert names(pw.program(lambda x: e(d(c(b(a(x))))), fuse=True).graph(v)) == ["a + b + c + …@left"]
    graph = pw.program(lambda x: (a(b(f(b(a(x))))), x), fuse=True).graph(v)
    assert names(graph) == ["a + b@left", "f@right", "b + a@left"]
    assert names(pw.program(lambda x: b(a(x))).graph(v)) == ["a@left", "b@left"], "only if asked for"


def test_works_add_up(left) -> None:
    first, second = pw.work(1e-5, on=left, name="first"), pw.work(2e-5, on=left, name="second")
    program = pw.program(lambda x: second(first(x)), fuse=True)
    assert [node.seconds for node in program.graph(v).nodes if node.place is not None] == [pytest.approx(3e-5)]
    close(program(v), v)


def test_gradients_across_islands_are_the_same_with_fewer_nodes(left, right) -> None:
    hidden = pw.jit(lambda w, x: jnp.tanh(x @ w), on=left, in_shardings=(None, pw.P("x")))
    again = pw.jit(lambda w, x: jnp.tanh(x @ w), on=left, in_shardings=(None, pw.P("x")))
    error = pw.jit(lambda w, h, y: jnp.mean((h @ w - y) ** 2), on=right, in_shardings=(None, pw.P("x"), pw.P("x")))
    random = np.random.default_rng(0)
    x, y, w = (random.normal(size=size).astype("f4") for size in ((8, 8), (8, 8), (8, 8)))

    def loss(params, x, y):
        return error(params[2] * 2, again(params[1], hidden(params[0], x)), y)

    def step(params, x, y):
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    plain, one = both(step)
    params = [w, w.T.copy(), w]
    close(one(params, x, y), plain(params, x, y))
    assert names(one.graph(params, x, y)) == [
        "hidden + again@left",
        "mul@right",  # before the left's value comes
        "error + error (bwd)@right",
        "again (bwd) + hidden (bwd) + mul, sub@left",
        "mul, sub@right",  # after the left's value has gone
    ]
    assert len(names(plain.graph(params, x, y))) == 9


def test_specs_hold_inside(left) -> None:
    """What each computation declares is in the fused executable's text, as constraints or at its edges."""
    seen: list[Any] = []

    def look(x):
        jax.debug.inspect_array_sharding(x, callback=lambda sharding: seen.append(sharding))
        return x * 2

    split = pw.jit(lambda x: x + 1, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    whole = pw.jit(look, on=left, in_shardings=pw.P(), out_shardings=pw.P("x"))
    out = pw.program(lambda x: split(whole(split(x))), fuse=True)(v)
    assert out.sharding.spec == pw.P("x")
    close(out, (v + 1) * 2 + 1)
    assert [sharding.is_fully_replicated for sharding in seen] == [True]


def test_per_shard_code_and_collectives_are_fused_too(left) -> None:
    mean = pw.shard_map(lambda x: x - jax.lax.pmean(x.mean(), "x"), on=left, in_specs=pw.P("x"), out_specs=pw.P("x"))
    scale = on(left, lambda x: x / x.std())
    plain, one = both(lambda x: scale(mean(mean(x))))
    assert len(names(one.graph(v))) == 1
    close(one(v), plain(v))


def test_a_donated_argument_is_taken_over_by_the_fused_node(left) -> None:
    step, read = on(left, lambda w: w + 1), on(left, lambda w: w.sum() + w)
    f = pw.program(lambda w: step(read(step(w))), donate_argnums=0, fuse=True)
    start = step(v)
    memory = first_shard(start)
    out = f(start)
    assert first_shard(out) == memory
    with pytest.raises(pw.LostError, match="donated"):
        start.result()


def test_a_value_donated_between_nodes_is_taken_over(left, right) -> None:
    make, other = on(left, lambda w: w + 1), on(right, lambda w: w * 2)
    take = on(left, lambda w, y: w - y, donate_argnums=0)
    more = on(left, lambda w: w * 3)

    def f(w):
        made = make(w)
        return more(take(made, other(made)))

    plain, one = both(f)
    assert names(one.graph(v)) == ["make@left", "other@right", "take + more@left"]
    for program in (plain, one):
        close(program(v), ((v + 1) - 2 * (v + 1)) * 3)


def test_effects_stay_in_order(left, capfd) -> None:
    def say(word):
        def body(x):
            jax.debug.print(word + " {}", x[0], ordered=False)
            return x + 1

        return pw.jit(body, on=left)

    one = pw.program(lambda x: say("second")(say("first")(x)), fuse=True)
    one(v).wait()
    jax.effects_barrier()
    assert capfd.readouterr().out.split() == ["first", "0.0", "second", "1.0"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7))
@settings(max_examples=8, deadline=None)
def test_random_programs_have_the_same_values_and_gradients(stages) -> None:
    """Stage by stage: one of two computations on one of two islands, on two of the values made so far."""
    pw.attach("cpu", islands=2, devices_per_island=4)
    left, right = (pw.virtual_slice(4, island=i, name="lr"[i]) for i in (0, 1))
    kinds = [on(place, fn) for place in (left, right) for fn in (lambda x, y: x * 2 + y, lambda x, y: jnp.sin(x) - y)]

    def f(x):
        made = [x]
        for kind, first, second in stages:
            made.append(kinds[kind](made[first % len(made)], made[second % len(made)]) + 1)
        return made[-1].sum(), made[len(made) // 2]

    plain, one = both(f)
    close(one(v), plain(v))
    assert len(one.graph(v).nodes) <= len(plain.graph(v).nodes)
    order = one.graph(v).producer()
    assert all(order[value] < node.id for node in one.graph(v).nodes for value in node.inputs)
    gradient, fused_gradient = both(jax.grad(lambda x: f(x)[0]))
    close(fused_gradient(v), gradient(v))
