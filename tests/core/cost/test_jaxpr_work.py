"""The walk of a jaxpr against counts by hand and against the compiler's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from pathways_nb.cost.collectives.collective import Collective
from pathways_nb.cost.jaxpr.node_work import Amount, Work, work_of
from pathways_nb.errors import UsageError
from tests.support.examples import examples

SIZES = {"data": 4, "model": 2}
MESH = AbstractMesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * 2)


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def work(fn: Callable[..., Any], *args: Any, **options: Any) -> Work:
    return work_of(jax.make_jaxpr(fn)(*args), **options)


def mlp(weights: Any, x: Any) -> Any:
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean(x)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8.0
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def conv(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (2, 2), "VALID")


def same_conv(x: Any, w: Any) -> Any:
    return lax.conv_general_dilated(x, w, (2, 2), "SAME")


WEIGHTS = [array(256, 512), array(512, 512), array(512, 64)]
FORWARD = 2 * 128 * (256 * 512 + 512 * 512 + 512 * 64)
X = array(128, 256)
QKV = [array(2, 64, 4, 16)] * 3


def test_a_forward_pass_takes_two_per_weight_and_row() -> None:
    assert work(mlp, WEIGHTS, X).of("matmul").flops == FORWARD
    assert work(mlp, WEIGHTS, X).of("matmul", "float32").flops == FORWARD
    assert work(mlp, WEIGHTS, X).of("matmul", "bfloat16") == Amount("matmul", "bfloat16")


def test_a_backward_pass_takes_twice_the_forward_pass() -> None:
    """With respect to weights and input, so that no product is left out."""
    both = work(jax.value_and_grad(mlp, argnums=(0, 1)), WEIGHTS, X)
    assert both.of("matmul").flops == 3 * FORWARD


def test_recomputation_runs_forward_again() -> None:
    """Forward, then the first layer once more; backward without the gradient of the input."""
    block = jax.checkpoint(lambda ws, x: jnp.tanh(x @ ws[0]) @ ws[1])
    step = jax.value_and_grad(lambda ws, x: block(ws, x).sum())
    first, second = 2 * 128 * 256 * 512, 2 * 128 * 512 * 64
    found = work(step, [array(256, 512), array(512, 64)], X).of("matmul").flops
    assert found == (first + second) + first + (first + 2 * second)


def test_attention_by_hand() -> None:
    found = work(attention, *QKV)
    assert found.of("matmul").flops == 2 * (2 * 4 * 64 * 64 * 16) * 2
    scores = 2 * 4 * 64 * 64
    assert found.of("reduction").flops == 2 * scores
    assert found.of("matmul").read == 4 * (2 * QKV[0].size + scores + QKV[0].size)


def test_a_convolution_by_hand() -> None:
    found = work(conv, array(2, 3, 17, 17), array(8, 3, 3, 3))
    assert found.of("conv", "float32").flops == 2 * (2 * 8 * 8 * 8) * (3 * 3 * 3)
    # Padded by one at the end: of 8·3 pairs along each side one falls outside.
    assert work(same_conv, array(2, 3, 16, 16), array(8, 3, 3, 3)).of("conv").flops == 2 * 2 * 8 * 3 * 23 * 23


def test_an_update_in_place_and_a_look_up_touch_only_their_rows() -> None:
    looked_up = work(lambda t, i: t[i], array(50_000, 16), array(4, dtype=jnp.int32))
    assert looked_up.of("movement").read < 4 * 16 * 4 + 64
    updated = work(lambda t, r: lax.dynamic_update_slice(t, r, (3, 0)), array(50_000, 16), array(1, 16))
    assert updated.of("movement").written == 64


def test_a_chain_of_elementwise_operations_reads_and_writes_once() -> None:
    found = work(lambda a, b: jnp.tanh(a * 2 + b) * jnp.exp(a) - 1, array(1000), array(1000))
    assert (found.read, found.written) == (8000, 4000)
    assert (found.of("elementwise").flops, found.of("transcendental").flops) == (4000, 2000)


def test_a_softmax_reads_again_behind_each_reduction() -> None:
    """max reads x; exp(x − max) reads x and is stored; the quotient reads it: 3 reads and 2 writes, and 4 rows."""
    n, row = 4 * 64 * 64, 4 * 64
    found = work(lambda x: jnp.exp(x - x.max(-1, keepdims=True)), array(64, 64))
    assert (found.read, found.written) == (2 * n + row, n + row)
    whole = work(lambda x: lax.stop_gradient(jax.nn.softmax(x)), array(64, 64))
    assert 3 * n <= whole.read <= 3 * n + 4 * row
    assert 2 * n <= whole.written <= 2 * n + 4 * row


def test_a_call_within_a_chain_does_not_cut_it() -> None:
    plain = work(lambda x: jnp.maximum(x, 0) * 2, array(1000))
    called = work(lambda x: jax.jit(jax.nn.relu)(x) * 2, array(1000))
    assert (called.read, called.written) == (plain.read, plain.written) == (4000, 4000)


def test_dead_code_costs_nothing() -> None:
    def fn(x: Any) -> Any:
        x @ x
        return x + 1

    assert work(fn, array(64, 64)).of("matmul").flops == 0


def test_scan_counts_its_length() -> None:
    def once(x: Any) -> Any:
        return jnp.tanh(x @ x)

    def scanned(x: Any) -> Any:
        return lax.scan(lambda c, _: (once(c), None), x, length=7)[0]

    assert work(scanned, array(64, 64)) == work(once, array(64, 64)) * 7
    # A scan that collects: the body writes its slice each time.
    collected = work(lambda xs: lax.scan(lambda c, x: (c, x * 2), 0.0, xs)[1], array(7, 1000))
    assert (collected.read, collected.written) == (28_000, 28_000)


@pytest.mark.parametrize(
    ("start", "stop", "step", "times"), [(0, 10, 1, 10), (1, 7, 2, 3), (7, 7, 1, 0), (9, -1, -2, 5), (0, 7, 3, 3)]
)
def test_a_while_counts_what_its_counter_tells(start: int, stop: int, step: int, times: int) -> None:
    def test(carry: Any) -> Any:
        return carry[0] < stop if step > 0 else carry[0] > stop

    def loop(x: Any) -> Any:
        return lax.while_loop(test, lambda c: (c[0] + step, c[1] @ c[1]), (start, x))[1]

    assert work(loop, array(16, 16)).of("matmul").flops == 2 * 16**3 * times
    assert work(loop, array(16, 16)).notes == ()


def test_a_for_loop_whose_bound_is_carried_counts_it() -> None:
    def loop(x: Any, n: Any) -> Any:
        return lax.fori_loop(0, n, lambda i, c: c @ c, x)

    assert work(lambda x: jax.jit(loop)(x, 5), array(16, 16)).of("matmul").flops == 5 * 2 * 16**3
    unknown = work(loop, array(16, 16), 5)
    assert unknown.of("matmul").flops == 2 * 16**3
    assert unknown.notes == ("a while loop of unknown length is counted once",)


def test_of_branches_the_dearest_counts() -> None:
    found = work(lambda p, x: lax.cond(p, lambda: x @ x @ x, lambda: x @ x), True, array(16, 16))
    assert found.of("matmul").flops == 2 * 2 * 16**3
    assert found.notes == ("of the 2 branches of a cond the dearest is counted",)


def per_shard(fn: Callable[..., Any], *args: Any, in_specs: Any, out_specs: Any, vma: bool = True) -> Work:
    return work(jax.shard_map(fn, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=vma), *args)


def test_every_collective_of_per_shard_code() -> None:
    def body(x: Any) -> Any:
        notify_all = [(i, (i + 1) % 4) for i in range(4)]
        return (
            lax.psum(x, "data"), lax.pmean(x, ("data", "model")), lax.pmax(x, "model"),
            lax.all_gather(x, "data"), lax.all_gather(x, "data", axis_index_groups=[[0, 1], [2, 3]]),
            lax.psum_scatter(x, "data", tiled=True), lax.all_to_all(x, "data", 0, 0, tiled=True),
            lax.ppermute(x, ("data",), notify_all), lax.pbroadcast(x, ("data",), 0),
        )  # fmt: skip

    shard = 4 * 4 * 8
    found = per_shard(body, array(16, 8), in_specs=P("data"), out_specs=P(), vma=False)
    assert found.collectives == (
        Collective("all-reduce", shard, ("data",), 4),
        Collective("all-reduce", shard, ("data", "model"), 8),
        Collective("all-reduce", shard, ("model",), 2),
        Collective("all-gather", 4 * shard, ("data",), 4),
        Collective("all-gather", 2 * shard, ("data",), 2),
        Collective("reduce-scatter", shard, ("data",), 4),
        Collective("all-to-all", shard, ("data",), 4),
        Collective("permute", shard, ("data",), 4),
        Collective("broadcast", shard, ("data",), 4),
    )


def test_the_gradient_of_per_shard_code_sums_its_gradients() -> None:
    """One all-reduce for the loss, one for each weight, however JAX calls them."""

    def loss(w: Any, x: Any) -> Any:
        return lax.pmean(jnp.mean(jnp.maximum(x @ w, 0)), "data")

    step = jax.value_and_grad(loss)
    found = per_shard(step, array(8, 6), array(16, 8), in_specs=(P(), P("data")), out_specs=(P(), P()))
    assert sorted(found.collectives, key=lambda c: c.bytes) == [
        Collective("all-reduce", 4, ("data",), 4),
        Collective("all-reduce", 4 * 8 * 6, ("data",), 4),
    ]
    # Shapes are one shard's: of 16 rows each device has 4; no product for the input's gradient is needed.
    assert found.of("matmul").flops == 2 * (2 * 4 * 8 * 6)


def test_collectives_in_a_scan_count_each_time() -> None:
    def body(x: Any) -> Any:
        return lax.scan(lambda c, _: (lax.psum(c, "data"), None), x, length=5)[0]

    found = per_shard(body, array(16, 8), in_specs=P(None), out_specs=P(), vma=False)
    assert found.collectives == (Collective("all-reduce", 4 * 16 * 8, ("data",), 4, count=5),)


def test_an_axis_without_a_size_is_named() -> None:
    jaxpr = jax.make_jaxpr(lambda x: lax.psum(x, "data"), axis_env=[("data", 4)])(array(8))
    assert work_of(jaxpr, {"data": 4}).collectives == (Collective("all-reduce", 32, ("data",), 4),)
    with pytest.raises(UsageError) as error:
        work_of(jaxpr, {"model": 2})
    assert "goes over the axis 'data'" in str(error.value)
    assert "(known: 'model': 2)" in str(error.value)
    assert "axis_sizes={'data': 8}" in str(error.value)


WIDE = [array(256, 512), array(512, 256)]
ONE_WAY = 2 * 128 * 256 * 512


def plain(weights: Any, x: Any) -> Any:
    return jnp.tanh(x @ weights[0]) @ weights[1]


@pytest.mark.parametrize(
    ("specs", "ways"),
    [
        ((P(), P(), P("data")), 4),
        ((P(None, "model"), P("model"), P()), 2),
        ((P(None, "model"), P("model"), P("data")), 8),
        ((P("data"), P("data"), P("data")), 4),
        ((P(), P(), P(("data", "model"))), 8),
        ((P(), P(), P()), 1),
    ],
    ids=["data", "model", "both", "fsdp", "two axes", "whole"],
)
def test_whole_array_code_is_divided_by_the_axes_that_split_it(specs: tuple[Any, ...], ways: int) -> None:
    forward = work(plain, WIDE, X, axis_sizes=SIZES, in_specs=specs)
    assert forward.of("matmul").flops == 2 * ONE_WAY / ways

    step = jax.grad(lambda ws, x: jnp.mean(plain(ws, x) ** 2))
    assert work(step, WIDE, X, axis_sizes=SIZES, in_specs=specs).of("matmul").flops == 5 * ONE_WAY / ways


def test_a_data_parallel_step_holds_no_collective_in_its_jaxpr() -> None:
    found = work(jax.grad(mlp), WEIGHTS, X, axis_sizes=SIZES, in_specs=[P()] * 3 + [P("data")])
    assert found.collectives == ()


def test_the_shardings_of_a_call_are_read_where_it_stands() -> None:
    place = jax.sharding.NamedSharding(MESH, P("data"))
    whole = jax.sharding.NamedSharding(MESH, P())
    called = jax.jit(plain, in_shardings=(whole, place))
    assert work(called, WIDE, X).of("matmul").flops == 2 * ONE_WAY / 4


def test_splits_follow_heads_through_reshapes() -> None:
    def block(w: Any, x: Any) -> Any:
        heads = (x @ w).reshape(2, 64, 4, 16)
        return attention(heads, heads, heads).reshape(2, 64, 64)

    args = (array(32, 64), array(2, 64, 32))
    whole = work(block, *args).of("matmul").flops
    assert work(block, *args, axis_sizes=SIZES, in_specs=[P(None, "model"), P()]).of("matmul").flops == whole / 2
    assert work(block, *args, axis_sizes=SIZES, in_specs=[P(), P("model")]).of("matmul").flops == whole / 2


def test_where_no_rule_says_how_outputs_divide_the_largest_does() -> None:
    def make(x: Any) -> Any:
        return jnp.sort(x), jnp.zeros(3)

    whole = work(make, array(1024, 64))
    split = work(make, array(1024, 64), axis_sizes=SIZES, out_specs=[P("data"), P()])
    assert split.flops == whole.flops / 4
    assert split.notes == ("only outputs are split: the work is divided by 4, as the largest of them",)


CHAINS: dict[str, Callable[[Any], Any]] = {
    "product": lambda x: x @ x,
    "elementwise": lambda x: jnp.tanh(x) * 2,
    "sum": lambda x: x - x.sum(0),
    "sorted": lambda x: jnp.sort(x),
    "transposed": lambda x: x.T + 1,
    "loop": lambda x: lax.fori_loop(0, 3, lambda i, c: c @ c, x),
    "exchange": lambda x: jax.shard_map(lambda s: lax.psum(s, "data"), mesh=MESH, in_specs=P("data"), out_specs=P())(
        jnp.concatenate([x] * 4)
    ),
}


def chain(names: list[str]) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        for name in names:
            x = CHAINS[name](x)
        return x

    return run


lists = st.lists(st.sampled_from(sorted(CHAINS)), min_size=1, max_size=4)


@given(lists, lists)
@examples(40)
def test_two_programs_side_by_side_take_the_sum(first: list[str], second: list[str]) -> None:
    x = array(8, 8)
    one, other = work(chain(first), x), work(chain(second), x)
    both = work(lambda a, b: (chain(first)(a), chain(second)(b)), x, x)
    assert set(both.collectives) == set((one + other).collectives)
    assert both.amounts == (one + other).amounts


@given(lists, lists)
@examples(40)
def test_one_program_after_the_other_takes_no_more_traffic(first: list[str], second: list[str]) -> None:
    """Operations add up exactly; where the second goes on in the first's fusion, bytes are saved."""
    x = array(8, 8)
    both, one, other = work(chain(first + second), x), work(chain(first), x), work(chain(second), x)
    assert both.flops == one.flops + other.flops
    assert both.collectives == (one + other).collectives
    assert both.read <= one.read + other.read
    assert both.written <= one.written + other.written


def test_works_multiply_and_add() -> None:
    one = work(chain(["product", "exchange", "sorted"]), array(8, 8))
    assert one * 3 == one + one + one
    assert (one * 2).collectives[0].count == 2 * one.collectives[0].count
    assert one + Work() == one
