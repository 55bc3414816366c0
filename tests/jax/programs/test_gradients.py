"""JAX's transformations over programs: every value equals plain, unsharded JAX; backward stands where forward did."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.runtime.run_state import RunState
from tests.support.closeness import close

x = np.linspace(-1, 2, 32, dtype=np.float32).reshape(4, 8)
params = {k: np.linspace(-1, s, 64, dtype=np.float32).reshape(8, 8) for k, s in (("one", 1.0), ("two", 0.5))}


def stage1(w, x):
    return jnp.tanh(x @ w)


def stage2(w, h):
    return jnp.mean(jnp.sin(h @ w) ** 2)


def plain(params, x):
    return stage2(params["two"], stage1(params["one"], x))


def two_stages(one: pw.VirtualSlice, two: pw.VirtualSlice):
    """The same model, a stage a place."""
    first = pw.jit(stage1, on=one, in_shardings=(pw.P(None, one.axes[0]), pw.P()))
    second = pw.jit(stage2, on=two, in_shardings=(pw.P(two.axes[0]), pw.P()))
    return lambda params, x: second(params["two"], first(params["one"], x))


@pytest.fixture
def model(left, right):
    return two_stages(left, right)


SHAPES = {"4": (4, None), "2x2": ((2, 2), ("data", "model")), "2": (2, None), "1": (1, None)}


@pytest.mark.parametrize("second", SHAPES)
@pytest.mark.parametrize("first", SHAPES)
def test_gradients_across_islands_of_any_shape(controller, first, second) -> None:
    one, two = (pw.virtual_slice(*SHAPES[name], island=i) for i, name in enumerate((first, second)))
    close(pw.program(jax.value_and_grad(two_stages(one, two)))(params, x), jax.value_and_grad(plain)(params, x))


def test_backward_nodes_stand_where_the_forward_ones_do(model) -> None:
    graph = pw.program(jax.value_and_grad(model)).graph(params, x)
    computations = [f"{n.name}@{n.place.label}" for n in graph.nodes if n.kind == "computation"]
    assert computations == ["stage1@left", "stage2@right", "stage2 (bwd)@right", "stage1 (bwd)@left"]


def test_checkpoint_computes_forward_again_on_the_same_place(model) -> None:
    f = pw.program(jax.grad(jax.checkpoint(model)))
    close(f(params, x), jax.grad(plain)(params, x))
    computations = [f"{n.name}@{n.place.label}" for n in f.graph(params, x).nodes if n.kind == "computation"]
    assert "stage1 (again)@left" in computations
    assert "stage1 (bwd)@left" in computations


TRANSFORMS = {
    "grad of the input": lambda f: jax.grad(f, argnums=1),
    "value_and_grad with aux": lambda f: jax.value_and_grad(lambda p, x: (f(p, x), {"twice": x * 2}), has_aux=True),
    "jvp": lambda f: lambda p, x: jax.jvp(lambda x: f(p, x), (x,), (x * 0.5,)),
    "vjp": lambda f: lambda p, x: jax.vjp(f, p, x)[1](jnp.float32(2)),
    "linearize": lambda f: lambda p, x: jax.linearize(lambda x: f(p, x), x)[1](x),
    "grad under jit": lambda f: jax.grad(jax.jit(f)),
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "sum of two gradients": lambda f: lambda p, x: jax.tree.map(jnp.add, jax.grad(f)(p, x), jax.grad(f)(p, x + 1)),
    "stop_gradient": lambda f: jax.grad(lambda p, x: f(p, x) * jax.lax.stop_gradient(f(p, x))),
    "saveable policy": lambda f: jax.grad(jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transformations_equal_plain_jax(model, name) -> None:
    transform = TRANSFORMS[name]
    close(pw.program(transform(model))(params, x), transform(plain)(params, x))


@pytest.mark.parametrize("name", ["vmap", "vmap of grad", "grad of vmap"])
def test_vmap_equals_plain_jax(model, name) -> None:
    mapped = {
        "vmap": lambda f: jax.vmap(f, in_axes=(None, 0)),
        "vmap of grad": lambda f: jax.vmap(jax.grad(f), in_axes=(None, 0)),
        "grad of vmap": lambda f: jax.grad(lambda p, xs: jax.vmap(f, in_axes=(None, 0))(p, xs).sum()),
    }[name]
    batch = np.stack([x, x + 1, x - 1])
    close(pw.program(mapped(model))(params, batch), mapped(plain)(params, batch))


def test_forward_over_reverse(left, right) -> None:
    one, two = pw.jit(lambda x: jnp.sin(x) * x, on=left), pw.jit(lambda y: jnp.sum(y**3), on=right)
    f = lambda x: two(one(x))  # noqa: E731
    close(pw.program(jax.hessian(f))(x[0, :3]), jax.hessian(lambda x: jnp.sum((jnp.sin(x) * x) ** 3))(x[0, :3]))


# ---- per-shard code


def per_shard(left, right):
    first = pw.shard_map(
        lambda w, x: jax.lax.psum(jnp.tanh(x @ w), "x"),
        on=left, in_specs=(pw.P("x"), pw.P(None, "x")), out_specs=pw.P(),
    )  # fmt: skip
    second = pw.shard_map(
        lambda w, h: jax.lax.pmean(jnp.sum((h @ w) ** 2), "x"),
        on=right, in_specs=(pw.P(), pw.P("x")), out_specs=pw.P(),
    )  # fmt: skip
    return lambda params, x: second(params["two"], first(params["one"], x))


def unsharded(params, x):
    parts = zip(jnp.split(x, 4, axis=1), jnp.split(params["one"], 4), strict=True)
    h = sum(jnp.tanh(a @ w) for a, w in parts)
    return jnp.sum((h @ params["two"]) ** 2) / 4


def test_per_shard_programs_equal_plain_jax(left, right) -> None:
    close(pw.program(per_shard(left, right))(params, x), unsharded(params, x))


def test_gradients_of_elementwise_per_shard_code(left) -> None:
    f = pw.shard_map(lambda x: jnp.sin(x) * 2, on=left, in_specs=pw.P("x"), out_specs=pw.P("x"))
    close(pw.program(jax.grad(lambda x: f(x).sum()))(x), 2 * np.cos(x))


def test_gradients_of_per_shard_programs_with_collectives(left, right) -> None:
    close(pw.program(jax.value_and_grad(per_shard(left, right)))(params, x), jax.value_and_grad(unsharded)(params, x))


def test_gradients_of_a_sum_inside_a_shard(left) -> None:
    """The transpose of a sum is a broadcast, which carries a sharding over the manual axes."""
    f = pw.shard_map(lambda x: jnp.sum(x**2)[None], on=left, in_specs=pw.P("x"), out_specs=pw.P("x"))
    close(pw.program(jax.grad(lambda x: f(x).sum()))(x), 2 * x)


def test_a_broadcast_inside_a_shard_without_any_gradient(left) -> None:
    f = pw.shard_map(
        lambda x: x + jnp.broadcast_to(jnp.sum(x), x.shape), on=left, in_specs=pw.P("x"), out_specs=pw.P("x")
    )
    close(f(x), x + x.sum(1, keepdims=True))


def test_checkpoint_and_vmap_of_per_shard_code(left) -> None:
    f = pw.shard_map(lambda x: jnp.sin(x) * 2, on=left, in_specs=pw.P("x"), out_specs=pw.P("x"))
    close(pw.program(jax.grad(jax.checkpoint(lambda x: f(x).sum())))(x), 2 * np.cos(x))
    close(pw.program(jax.vmap(f))(np.stack([x, x])), np.stack([np.sin(x) * 2] * 2))


# ---- residuals


@pytest.fixture
def forward(model, quiet, controller, monkeypatch):
    """For each forward node of the model's gradient: its name and the values it took and gave, from a real run."""
    filled: list[tuple[RunState, int, list]] = []
    fill = RunState.fill
    monkeypatch.setattr(RunState, "fill", lambda *args: (filled.append(args), fill(*args))[1])
    pw.wait(pw.program(jax.value_and_grad(model))(params, x))
    quiet(controller)
    plan = filled[0][0].compiled_plan.plan
    values = {slot: np.asarray(a) for _, step, arrays in filled
              for slot, a in zip(plan.steps[step].outputs, arrays, strict=True)}  # fmt: skip
    names = {node.id: node.name for node in plan.graph.nodes}
    return [
        (names[step.node], [values[slot] for slot in step.inputs], [values[slot] for slot in step.outputs])
        for step in plan.steps
        if step.kind == "launch" and names[step.node] in ("stage1", "stage2")
    ]


def test_residuals_never_carry_copies_of_inputs(forward) -> None:
    """By value: nothing that a forward node gives equals anything that it takes."""
    assert [name for name, *_ in forward] == ["stage1", "stage2"]
    assert all(len(outputs) > 1 for _, _, outputs in forward), "there are residuals to look at"
    for name, inputs, outputs in forward:
        for output in outputs:
            copies = [i for i in inputs if i.shape == output.shape and np.array_equal(i, output)]
            assert not copies, f"{name} hands its own input of shape {output.shape} on"


def test_a_forward_node_gives_nothing_twice(forward) -> None:
    for name, _, outputs in forward:
        pairs = [(one, two) for i, one in enumerate(outputs) for two in outputs[:i] if one.shape == two.shape]
        assert not any(np.array_equal(one, two) for one, two in pairs), name


def test_weights_are_brought_once_for_forward_and_backward(model) -> None:
    f = pw.program(jax.value_and_grad(model))
    f(params, x)
    with pw.record() as run:
        f(params, x)
    brought = [row["name"] for row in run.events.of_kind("transfer") if row["route"] == "host"]
    assert sorted(brought) == ["params → left", "params → right", "x → left"]
    crossed = {row["name"]: row["bytes"] for row in run.events.of_kind("transfer") if row["route"] == "DCN"}
    assert crossed == {"left → right": 128, "right → left": 4 * 128}, "in shards one way, to each device the other"
