"""``pw.jit`` sees whole arrays, ``pw.shard_map`` sees one shard: JAX's own meanings, checked against JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from tests.support.closeness import close

v = np.arange(8, dtype=np.float32)
grid_values = np.arange(32, dtype=np.float32).reshape(8, 4)


def center(v):
    return v - v.mean()


def pieces(future) -> int:
    """How many different parts of the array its devices hold: 1 if replicated."""
    return len({str(shard.index) for shard in future.array().addressable_shards})


def test_jit_sees_the_whole_array(left) -> None:
    close(pw.jit(center, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))(v), np.asarray(jax.jit(center)(v)))


def test_shard_map_sees_one_shard(left) -> None:
    """Each pair of elements has its own mean; plain ``jax.shard_map`` says so, too."""
    per_shard = np.concatenate([center(part) for part in np.split(v, 4)])
    assert not np.allclose(per_shard, center(v))
    close(pw.shard_map(center, on=left, in_specs=pw.P("x"), out_specs=pw.P("x"))(v), per_shard)
    one = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1], axis_types=(jax.sharding.AxisType.Auto,))
    plain = jax.shard_map(center, mesh=one, in_specs=pw.P("x"), out_specs=pw.P("x"))
    single = pw.virtual_slice(1)
    close(pw.shard_map(center, on=single, in_specs=pw.P("x"), out_specs=pw.P("x"))(v), np.asarray(plain(v)))


def test_decorators_with_and_without_options(left) -> None:
    @pw.jit(on=left)
    def double(v):
        "Twice."
        return v * 2

    @pw.shard_map(on=left, in_specs=pw.P("x"), out_specs=pw.P("x"))
    def rank(v):
        return v * 0 + jax.lax.axis_index("x")

    close(double(v), v * 2)
    close(rank(v), np.repeat(np.arange(4.0), 2))
    assert (double.__name__, double.__doc__, repr(double)) == ("double", "Twice.", "<computation double on left>")


@pytest.mark.parametrize(
    ("body", "out", "expected"),
    [
        (lambda s: jax.lax.psum(s, "x"), pw.P(), v.reshape(4, 2).sum(0)),
        (lambda s: jax.lax.pmean(s, "x"), pw.P(), v.reshape(4, 2).mean(0)),
        (lambda s: jax.lax.ppermute(s, "x", [(i, (i + 1) % 4) for i in range(4)]), pw.P("x"), np.roll(v, 2)),
        (lambda s: jax.lax.all_gather(s, "x", tiled=True)[::-1][:2], pw.P("x"), np.tile([7.0, 6.0], 4)),
        (lambda s: jax.lax.psum_scatter(jnp.tile(s, 2), "x", tiled=True), pw.P("x"), np.array([12.0, 16, 12, 16])),
        (lambda s: jax.lax.all_to_all(jnp.tile(s, 2), "x", 0, 0, tiled=True), pw.P("x"), None),
    ],
    ids=["psum", "pmean", "ppermute", "all_gather", "psum_scatter", "all_to_all"],
)
def test_collectives(left, body, out, expected) -> None:
    if expected is None:
        expected = np.tile(v.reshape(4, 2), (1, 2)).reshape(4, 4).T.reshape(-1)
    close(pw.shard_map(body, on=left, in_specs=pw.P("x"), out_specs=out)(v), expected)


def test_a_two_dimensional_place_has_both_its_axes(controller) -> None:
    grid = pw.virtual_slice((2, 2), axes=("data", "model"))
    product = pw.jit(
        lambda x, w: x @ w,
        on=grid,
        in_shardings=(pw.P("data"), pw.P(None, "model")),
        out_shardings=pw.P("data", "model"),
    )
    out = product(grid_values, grid_values.T)
    close(out, grid_values @ grid_values.T)
    assert out.sharding.spec == pw.P("data", "model")
    assert {s.data.shape for s in out.array().addressable_shards} == {(4, 4)}
    rows = pw.shard_map(
        lambda s: jax.lax.psum(s, "model"), on=grid, in_specs=pw.P("data", "model"), out_specs=pw.P("data")
    )
    close(rows(grid_values), grid_values[:, :2] + grid_values[:, 2:])
    both = pw.shard_map(
        lambda s: jax.lax.psum(s.sum(), ("data", "model")), on=grid, in_specs=pw.P(("data", "model")), out_specs=pw.P()
    )
    close(both(grid_values), grid_values.sum())


def test_bare_constraints_mean_the_places_axes(left) -> None:
    @pw.jit(on=left)
    def f(v):
        return jax.lax.with_sharding_constraint(v * 2, pw.P("x"))

    out = f(v)
    close(out, v * 2)
    assert out.sharding.is_equivalent_to(jax.sharding.NamedSharding(out.sharding.mesh, pw.P("x")), 1)
    assert pieces(out) == 4


def test_bare_shard_map_inside_a_computation_means_the_places_axes(left) -> None:
    @pw.jit(on=left)
    def f(v):
        return jax.shard_map(center, in_specs=pw.P("x"), out_specs=pw.P("x"))(v).sum() + v

    close(f(v), np.concatenate([center(part) for part in np.split(v, 4)]).sum() + v)


def test_left_out_shardings_are_replicated_in_and_the_compilers_out(left) -> None:
    whole = pw.jit(lambda v: v * 2, on=left)(v)
    assert {s.data.shape for s in whole.array().addressable_shards} == {(8,)}
    free = pw.jit(lambda v: v * 2, on=left, in_shardings=pw.P("x"))(v)
    assert {s.data.shape for s in free.array().addressable_shards} == {(2,)}, "the compiler keeps it split"


def test_declared_output_shardings_hold(left) -> None:
    outs = pw.jit(lambda v: {"a": v, "b": (v, v + 1)}, on=left, out_shardings={"a": pw.P("x"), "b": pw.P()})(v)
    assert [pieces(x) for x in jax.tree.leaves(outs)] == [4, 1, 1]


def test_shardings_are_prefixes_of_the_argument_trees(left) -> None:
    seen = []

    def f(tree, scale):
        jax.debug.inspect_array_sharding(tree["w"], callback=lambda s: seen.append(len(s.device_set)))
        return jax.tree.map(lambda a: a * scale, tree)

    g = pw.jit(f, on=left, in_shardings=(pw.P("x"), None), out_shardings=pw.P("x"))
    close(g({"w": v, "b": (v + 1,)}, 2.0), {"w": v * 2, "b": ((v + 1) * 2,)})
    h = pw.jit(f, on=left, in_shardings=({"w": pw.P("x"), "b": pw.P()}, pw.P()))
    close(h({"w": v, "b": (v + 1,)}, 2.0), {"w": v * 2, "b": ((v + 1) * 2,)})


def test_keyword_arguments_are_the_same_call(left) -> None:
    f = pw.jit(lambda v, w=1.0: v * w, on=left, in_shardings=(pw.P("x"), pw.P()))
    close(f(v, 2.0), v * 2)
    close(f(v=v, w=2.0), v * 2)
    close(f(w=2.0, v=v), v * 2)
    g = pw.jit(lambda v, *, shift: v + shift["by"], on=left)
    close(g(v, shift={"by": 3.0}), v + 3)


def test_left_out_defaults_with_one_spec_for_all(left) -> None:
    f = pw.jit(lambda v, w=2.0: v * w, on=left, in_shardings=pw.P("x"))
    close(f(v), v * 2)


@pytest.mark.parametrize(
    "options",
    [{"static_argnums": 1}, {"static_argnums": (1,)}, {"static_argnames": "mode"}, {"static_argnames": ["mode"]}],
)
@pytest.mark.parametrize(
    "call", [lambda f: f(v, "double"), lambda f: f(v, mode="double"), lambda f: f(mode="double", v=v)]
)
def test_static_arguments_by_number_and_by_name(left, options, call) -> None:
    f = pw.jit(lambda v, mode="plain": v * 2 if mode == "double" else v, on=left, **options)
    close(call(f), v * 2)
    close(f(v), v)


def test_static_arguments_are_counted_from_the_end_too(left) -> None:
    close(pw.jit(lambda v, mode: v * 2 if mode == "double" else v, on=left, static_argnums=-1)(v, "double"), v * 2)


def test_a_static_argument_in_front_leaves_the_shardings_in_step(left) -> None:
    f = pw.jit(lambda n, v: v * n, on=left, static_argnums=0, in_shardings=(pw.P("x"),), out_shardings=pw.P("x"))
    close(f(3, v), v * 3)
    close(f(2, v), v * 2)


def test_a_keyword_only_static_argument_by_number_is_found(left) -> None:
    f = pw.jit(lambda v, a=1, mode="plain": v * 2 if mode == "double" else v, on=left, static_argnums=2)
    close(f(v, mode="double"), v * 2)


def test_trees_in_and_out(left) -> None:
    f = pw.jit(lambda t: {"sum": t["a"] + t["b"][0], "list": [t["b"][1]]}, on=left)
    out = f({"a": v, "b": (v, 3)})
    close(out, {"sum": v * 2, "list": [3]})
    assert isinstance(out["sum"], pw.Future)


def test_none_is_an_empty_tree_in_an_output(left) -> None:
    close(pw.jit(lambda v: {"a": v, "none": None}, on=left)(v), {"a": v, "none": None})


def test_none_is_an_empty_tree_in_an_argument(left) -> None:
    f = pw.jit(lambda v, mask=None: v if mask is None else v * mask, on=left)
    close(f(v, None), v)
    close(f({"a": v, "b": None}["a"], mask=2.0), v * 2)
    close(pw.jit(lambda t, n: t["a"] * n, on=left, in_shardings=(pw.P("x"), pw.P()))({"a": v, "b": None}, 3), v * 3)


def test_a_computation_calls_the_users_own_jitted_function(left) -> None:
    inner = jax.jit(lambda v, n: v**n, static_argnums=1)
    close(pw.jit(lambda v: inner(v, 2) + inner(v, 3), on=left, in_shardings=pw.P("x"))(v), v**2 + v**3)


def test_a_computation_calls_another_on_the_same_place(left) -> None:
    inner = pw.jit(center, on=left)
    close(pw.jit(lambda v: inner(v) * 2, on=left)(v), center(v) * 2)


def test_a_computation_on_another_place_cannot_be_called_inside(left, right) -> None:
    away = pw.jit(center, on=right)
    outer = pw.jit(lambda v: away(v), on=left)
    text = "center on right is called inside outer on left: a node is on one place. Call both from a @pw.program."
    with pytest.raises(pw.UsageError) as error:
        outer(v)
    assert str(error.value) == text
    close(away(v), center(v))


def test_a_method_is_a_computation(left) -> None:
    class Model:
        scale = 3.0

        def forward(self, v):
            return v * self.scale

    close(pw.jit(Model().forward, on=left)(v), v * 3)


def test_a_partial_is_a_computation(left) -> None:
    import functools

    close(pw.jit(functools.partial(lambda n, v: v * n, 3), on=left)(v), v * 3)


def test_numbers_are_arguments_and_keep_weak_types(left) -> None:
    f = pw.jit(lambda v, n: v * n, on=left)
    out = f(jnp.ones(4, jnp.bfloat16), 2.5)
    assert out.dtype == jnp.bfloat16
    assert f(jnp.ones(4, jnp.bfloat16), np.float32(2.5)).dtype == jnp.float32


def test_arguments_come_from_anywhere(left, right) -> None:
    """NumPy, lists' numbers, the default device, a future of the same place, of another place, a live island array."""
    f = pw.jit(lambda v: v + 1, on=left, in_shardings=pw.P("x"))
    away = pw.jit(lambda v: v + 1, on=right, in_shardings=pw.P("x"))
    for argument in (
        v,
        jnp.asarray(v),
        f(v - 1),
        away(v - 1),
        f(v - 1).array(),
        away(v - 1).array(),
        v.astype(np.float64),
    ):
        close(f(argument), v + 1)
    close(f(v[::2][:4]), v[::2] + 1)


def test_a_numpy_argument_may_be_changed_after_the_call(left) -> None:
    mine = v.copy()
    out = pw.jit(lambda v: v + 1, on=left)(mine)
    mine[:] = -1
    close(out, v + 1)
    kept = pw.put(mine, on=left)
    mine[:] = 5
    close(kept, np.full(8, -1.0))


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "int32", "int8", "uint8", "bool", "complex64", "float8_e4m3fn"]
)
def test_every_dtype_crosses_islands(left, right, dtype) -> None:
    values = jnp.asarray([0, 1, 1, 0], dtype)
    there, back = pw.jit(lambda a: a, on=right), pw.jit(lambda a: a, on=left)
    out = pw.program(lambda a: back(there(back(a))))(values)
    assert out.dtype == values.dtype
    np.testing.assert_array_equal(out.result(), np.asarray(values))


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (4, 0), (1, 1, 1)])
def test_scalars_and_empty_arrays_cross_islands(left, right, shape) -> None:
    f, g = pw.jit(lambda a: a + 1, on=left), pw.jit(lambda a: a * 2, on=right)
    out = pw.program(lambda a: g(f(a)))(np.zeros(shape, np.float32))
    assert out.shape == shape
    np.testing.assert_array_equal(out.result(), np.full(shape, 2.0))


def test_float64_is_taken_as_jax_takes_it(left) -> None:
    out = pw.jit(lambda a: a, on=left)(np.arange(3.0))
    assert out.dtype == jax.jit(lambda a: a)(np.arange(3.0)).dtype == np.float32


def test_put_places_trees(controller, left, right) -> None:
    tree = {"a": v, "b": [np.float32(2), 3]}
    put = pw.put(tree, on=right, shardings={"a": pw.P("x"), "b": None})
    close(put, tree)
    assert pieces(put["a"]) == 4
    assert {d.id for d in put["a"].array().devices()} == {d.id for d in controller.driver.attachment.islands[1].devices}
    close(pw.put(put["a"], on=left), v)


def test_what_cannot_be_a_place_or_a_function_is_refused(left) -> None:
    with pytest.raises(pw.UsageError, match=r"on=4 is an int; pass a pw.virtual_slice\(\.\.\.\)\."):
        pw.jit(center, on=4)  # type: ignore[arg-type]
    with pytest.raises(pw.UsageError, match=r"pw.jit\(3, ...\) needs a function, got an int"):
        pw.jit(3, on=left)  # type: ignore[arg-type]
    with pytest.raises(pw.UsageError, match=r"pw.program\('f'\) needs a function, got a str"):
        pw.program("f")  # type: ignore[arg-type]
