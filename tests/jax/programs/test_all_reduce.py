"""``pw.all_reduce``: sums, gradients and training over islands equal plain JAX on the whole batch, in every layout."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pathways_nb as pw
from pathways_nb.examples import data_parallel, llama
from pathways_nb.plan.plan import Plan
from pathways_nb.session.calls import submit
from tests.support.closeness import close
from tests.support.computations import names, on

SIZE = llama.Size(features=64, shared_heads=1, hidden=48, vocabulary=32)


def places(count: int, devices: int = 2) -> list[pw.VirtualSlice]:
    pw.attach("cpu", islands=count, devices_per_island=4)
    return [pw.virtual_slice(devices, island=island) for island in range(count)]


def exact(*trees: Any) -> None:
    """Equal to the last bit."""
    for one, other in zip(*map(jax.tree.leaves, map(pw.get, trees)), strict=True):
        np.testing.assert_array_equal(one, other)


def plan_of(program: pw.Program, *args: Any) -> Plan:
    controller = pw.attach("cpu", islands=2, devices_per_island=4)
    call = program.signature(args, {})
    return submit.plan_of(controller, submit.traced(controller, program, call))


def summed(make: Any, where: list[pw.VirtualSlice], **options: Any) -> pw.Program:
    """A program that makes a tree at each place from an argument for each, and adds the trees."""
    made = [pw.jit(make, on=place) for place in where]
    return pw.program(
        lambda *args: pw.all_reduce([one(x) for one, x in zip(made, args, strict=True)], across=where, **options)
    )


@pytest.mark.parametrize(("count", "bucket_mb"), [(2, 25.0), (3, 0.05)])
def test_three_steps_over_islands_are_three_steps_of_plain_jax_on_the_whole_batch(count, bucket_mb) -> None:
    where, optimizer = places(count), optax.sgd(0.1, momentum=0.9)
    _, params = llama.stages([1, 1], SIZE)
    tokens, targets = llama.batch(2 * 2 * count, 16, SIZE)
    step = data_parallel.training_step(where, optimizer, bucket_mb)
    trees, states, batches = data_parallel.start(where, optimizer, params, tokens, targets)
    state = optimizer.init(params)

    @jax.jit
    def plain(params: Any, state: Any) -> Any:
        value, gradients = jax.value_and_grad(data_parallel.whole_loss)(params, tokens, targets)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    for _ in range(3):
        trees, states, losses = step(trees, states, batches)
        params, state, value = plain(params, state)
        close(losses[0], value)
    close(trees[0], params)
    for other in range(1, count):
        exact(trees[0], trees[other])
        exact(losses[0], losses[other])


@pytest.mark.parametrize("count", [2, 3])
def test_gradients_of_sharded_parameters_keep_their_shardings(count) -> None:
    where = places(count)

    def loss_on(place: pw.VirtualSlice) -> Any:
        layer = pw.jit(lambda w, x: jnp.tanh(x @ w), on=place, in_shardings=(pw.P("x"), None), out_shardings=pw.P())
        error = pw.jit(lambda x, y: jnp.mean((x - y) ** 2), on=place)

        def loss(weights: Any, x: Any, y: Any) -> Any:
            for w in weights:
                x = layer(w, x)
            return error(x, y)

        return loss

    losses = [loss_on(place) for place in where]

    @pw.program
    def gradients(trees: Any, xs: Any, ys: Any) -> Any:
        made = [jax.grad(loss)(*args) for loss, *args in zip(losses, trees, xs, ys, strict=True)]
        return pw.all_reduce(made, across=where, mean=True, bucket_mb=1e-4)

    random = np.random.default_rng(0)
    weights = [random.normal(size=(8, 8)).astype(np.float32) for _ in range(3)]
    x, y = (random.normal(size=(6 * count, 8)).astype(np.float32) for _ in range(2))
    put = [pw.put(weights, on=place, shardings=pw.P("x")) for place in where]
    found = gradients(put, np.split(x, count), np.split(y, count))

    def whole(weights: Any) -> Any:
        made: Any = x
        for w in weights:
            made = jnp.tanh(made @ w)
        return jnp.mean((made - y) ** 2)

    close(found[0], jax.grad(whole)(weights))
    for tree, weights in zip(found, put, strict=True):
        exact(found[0], tree)
        assert all(leaf.sharding.is_equivalent_to(w.sharding, 2) for leaf, w in zip(tree, weights, strict=True))


def test_islands_may_differ_in_devices_and_axes_and_each_sum_keeps_its_own_layout() -> None:
    pw.attach("cpu", islands=2, devices_per_island=4)
    left = pw.virtual_slice((2, 2), axes=("a", "b"), island=0)
    right = pw.virtual_slice(2, island=1)
    first = pw.jit(lambda v: v * 2, on=left, in_shardings=pw.P("a", "b"), out_shardings=pw.P("b", "a"))
    second = pw.jit(lambda v: v * 3, on=right, in_shardings=pw.P("x"), out_shardings=pw.P(None, "x"))
    program = pw.program(lambda v: pw.all_reduce((first(v), second(v)), across=[left, right]))
    v = np.arange(32, dtype=np.float32).reshape(8, 4)
    one, other = program(v)
    close((one, other), (v * 5, v * 5))
    exact(one, other)
    assert one.array().sharding.spec == pw.P("b", "a")
    assert other.array().sharding.spec == pw.P(None, "x")


def test_no_value_crosses_that_is_there_and_each_crosses_once() -> None:
    where = places(2)
    program = summed(lambda v: {"a": v, "b": v * 2}, where)
    plan = plan_of(program, *[np.ones(8, np.float32)] * 2)
    moved = [(plan.slots[step.outputs[0]].value, step.place) for step in plan.steps if step.kind == "move"]
    assert len(moved) == len(set(moved)) == 4
    assert all(step.route == "DCN" for step in plan.steps if step.kind == "move")


def test_bfloat16_scalars_nothing_and_tied_leaves() -> None:
    where = places(3)

    def make(v: Any) -> Any:
        tied = v.astype(jnp.bfloat16) / 3
        return {
            "half": tied,
            "again": tied,
            "none": None,
            "scalar": v.sum(),
            "count": jnp.int32(v.shape[0]),
            "empty": [],
        }

    v = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    found = summed(make, where)(*v)
    parts = [make(row) for row in v]
    for tree in found:
        exact(found[0], tree)
        assert tree["none"] is None
        assert tree["empty"] == []
        assert tree["half"].dtype == jnp.bfloat16
    close(found[0]["scalar"], v.sum())
    assert int(found[0]["count"]) == 24
    want = sum(np.asarray(part["half"], np.float32) for part in parts)
    close(np.asarray(found[0]["half"].result(), np.float32), want, 2e-2)


def test_a_parameter_that_is_used_twice_has_one_gradient() -> None:
    where = places(2)

    def loss_on(place: pw.VirtualSlice) -> Any:
        embed = pw.jit(lambda table, t: table[t], on=place)
        logits = pw.jit(lambda table, x: ((x @ table.T) ** 2).mean(), on=place)
        return lambda table, t: logits(table, embed(table, t))

    losses = [loss_on(place) for place in where]
    program = pw.program(
        lambda tables, ts: pw.all_reduce(
            [jax.grad(loss)(table, t) for loss, table, t in zip(losses, tables, ts, strict=True)],
            across=where,
            mean=True,
        )
    )
    table, t = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32), np.array([0, 3, 1, 5])
    found = program([table, table], np.split(t, 2))
    close(found[0], jax.grad(lambda table: ((table[t] @ table.T) ** 2).mean())(table))
    exact(*found)


def test_it_is_one_node_for_each_bucket_and_place_in_the_order_of_the_backward_pass() -> None:
    left, right = where = places(2)
    made = {place: [on(place, lambda x, k=k: x * k, None) for k in range(3)] for place in where}

    @pw.program
    def program(x: Any) -> Any:
        last = {place: [] for place in where}
        for place in where:
            value = x
            for one in made[place]:
                value = one(value)
                last[place].insert(0, value)  # the tree has them in the opposite order
        return pw.all_reduce((last[left], last[right]), across=where, bucket_mb=70e-6)

    graph = program.graph(np.ones(8, np.float32))
    sums = [node for node in graph.nodes if node.name == "all_reduce"]
    assert [node.place for node in sums] == [left, right, left, right]
    home = {value: node.place for node in graph.nodes for value in node.outputs}
    on_left = [[v for v in node.inputs if home[v] == left] for node in sums if node.place == left]
    produced = [node.outputs[0] for node in graph.nodes if node.place == left][:3]
    assert [value for bucket in on_left for value in bucket] == produced, "in the order in which they are made"
    assert list(map(len, on_left)) == [2, 1]


def test_moves_stand_where_both_islands_have_made_the_value_not_behind_everything() -> None:
    where = places(2)
    made = {place: [on(place, lambda x, k=k: x + k, None) for k in range(4)] for place in where}

    @pw.program
    def program(x: Any) -> Any:
        trees: list[list[Any]] = []
        for place in where:
            trees.append([])
            for one in made[place]:
                trees[-1].append(one(trees[-1][-1] if trees[-1] else x))
        return pw.all_reduce(trees, across=where)

    plan = plan_of(program, np.ones(8, np.float32))
    for order in plan.orders.values():
        kinds = [plan.steps[step].kind for step in order if plan.steps[step].kind != "bring"]
        assert kinds.count("move") == 4
        assert kinds[-2:] == ["move", "launch"]
        assert kinds.index("move") <= 2, "before the second or third launch"
    close(program(np.zeros(8, np.float32))[0][3], np.full(8, 12.0))


def test_gradients_flow_through_the_sums() -> None:
    where = places(2)
    program = summed(lambda v: v**2, where)

    def loss(x: Any, y: Any) -> Any:
        one, other = program(x, y)
        return jnp.sum(one * 3) + jnp.sum(other)

    x, y = np.arange(4.0, dtype=np.float32), np.ones(4, np.float32)
    close(pw.program(jax.grad(loss, (0, 1)))(x, y), (8 * x, 8 * y))
    close(pw.program(jax.value_and_grad(loss))(x, y)[0], 4 * (x**2 + y**2).sum())
    close(pw.program(jax.vmap(program))(np.stack([x, x]), np.stack([y, y]))[1], np.stack([x**2 + y**2] * 2))


def test_loose_calls_add_too_and_equal_trees_of_one_bucket_size_share_an_executable() -> None:
    left, right = where = places(2)
    a, b = on(left, lambda v: v * 2), on(right, lambda v: v * 3)
    v = np.arange(8, dtype=np.float32)
    with pw.record() as run:
        one, other = pw.all_reduce((a(v), b(v)), across=where)
    close((one, other), (v * 5, v * 5))
    assert "all_reduce@" in " ".join(names(run.programs[0].graph))


def test_fused_programs_have_the_same_sums() -> None:
    where = places(2)
    made = [pw.jit(lambda v: (v * 2, v + 1), on=place) for place in where]
    program = pw.program(
        lambda x: jax.tree.map(
            lambda v: v * 2, pw.all_reduce([one(x) for one in made], across=where, bucket_mb=1e-6)
        ), fuse=True
    )  # fmt: skip
    v = np.arange(8, dtype=np.float32)
    close(program(v)[1], (v * 8, v * 4 + 4))


def test_what_it_refuses() -> None:
    left, right = places(2)
    third = pw.virtual_slice(2, island=0, name="third")
    a, b = on(left, lambda v: v * 2), on(right, lambda v: v * 3)
    v = np.arange(8, dtype=np.float32)

    def calls(body: Any) -> Any:
        return pw.program(body).graph(v)

    with pytest.raises(pw.UsageError, match="has 1 place; sums over places need two or more"):
        calls(lambda v: pw.all_reduce((a(v),), across=[left]))
    with pytest.raises(pw.UsageError, match=f"has {left.label} twice"):
        calls(lambda v: pw.all_reduce((a(v), a(v)), across=[left, left]))
    with pytest.raises(pw.UsageError, match="3, an int; give places"):
        calls(lambda v: pw.all_reduce((a(v), b(v)), across=[left, 3]))  # type: ignore[list-item]
    with pytest.raises(pw.UsageError, match="a tree for each of the 2 places of across=, got 1 tree"):
        calls(lambda v: pw.all_reduce((a(v),), across=[left, right]))
    with pytest.raises(pw.UsageError, match="the trees differ"):
        calls(lambda v: pw.all_reduce(({"w": a(v)}, {"b": b(v)}), across=[left, right]))
    with pytest.raises(pw.UsageError, match=r"leaf \['w'\] is float32\[8\] on .* and float32\[4\] on"):
        calls(lambda v: pw.all_reduce(({"w": a(v)}, {"w": b(v)[:4]}), across=[left, right]))
    with pytest.raises(pw.UsageError, match="has the dtype bool; numbers are needed"):
        calls(lambda v: pw.all_reduce((a(v) > 0, b(v) > 0), across=[left, right]))
    with pytest.raises(pw.UsageError, match="floating point numbers are needed for mean=True"):
        calls(lambda v: pw.all_reduce((a(v).astype(int), b(v).astype(int)), across=[left, right], mean=True))
    with pytest.raises(pw.UsageError, match=f"tree 0, .* is computed on {right.label}, but across.0. is {left.label}"):
        calls(lambda v: pw.all_reduce((b(v), a(v)), across=[left, right]))
    with pytest.raises(pw.UsageError, match=f"is computed on {left.label}, but across.1. is third"):
        calls(lambda v: pw.all_reduce((b(v), a(v)), across=[right, third]))
    with pytest.raises(pw.UsageError, match="bucket_mb=0.: a positive number"):
        calls(lambda v: pw.all_reduce((a(v), b(v)), across=[left, right], bucket_mb=0))
