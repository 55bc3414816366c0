"""Collectives of whole-array code, read from what XLA compiles for a few CPU devices and scaled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pathways_nb.cost.collectives.collective import Collective
from pathways_nb.cost.collectives.groups import axes_of, groups_of
from pathways_nb.cost.hlo import quick_compiling
from pathways_nb.cost.hlo.compiled import CompiledFacts, collectives_by_compiling
from pathways_nb.cost.hlo.hlo_collectives import hlo_collectives_of
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.cost.hlo.quick_compiling import cpu_devices
from pathways_nb.cost.jaxpr.node_work import work_of
from pathways_nb.errors import UsageError

pytestmark = pytest.mark.usefixtures("usual_effort")

FLOATS = [jnp.float32, jnp.bfloat16]


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def two_layers(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w[0]) @ w[1]


def loss(w: Any, x: Any) -> Any:
    return jnp.mean(two_layers(w, x) ** 2)


def layers(w: Any, x: Any) -> Any:
    """One layer for each row of ``w``, in a scan."""
    return jnp.mean(jax.lax.scan(lambda c, a: (jnp.tanh(c @ a), None), x, w)[0])


Case = tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...], Any]


def data_parallel(dtype: Any) -> Case:
    weights = (array(256, 512, dtype=dtype), array(512, 128, dtype=dtype))
    return jax.grad(loss), (weights, array(2048, 256, dtype=dtype)), (P(), P("data")), P()


def tensor_parallel(dtype: Any) -> Case:
    weights = (array(256, 512, dtype=dtype), array(512, 128, dtype=dtype))
    specs = ((P(None, "data"), P("data")), P())
    return two_layers, (weights, array(2048, 256, dtype=dtype)), specs, P()


def fsdp(dtype: Any) -> Case:
    args = (array(6, 256, 256, dtype=dtype), array(2048, 256, dtype=dtype))
    return jax.grad(layers), args, (P(None, "data"), P("data")), P(None, "data")


CASES = {"data": data_parallel, "tensor": tensor_parallel, "fsdp": fsdp}


def compiled(case: Case, sizes: dict[str, int], **options: Any) -> CompiledFacts:
    fn, args, in_specs, out_specs = case
    return collectives_by_compiling(fn, args, in_specs, out_specs, sizes, **options)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_data_parallel_gradient_is_one_all_reduce_of_its_bytes(dtype: Any) -> None:
    """XLA on CPU computes in 32 bits what is asked for in 16; the exchange counts as asked for."""
    found = compiled(data_parallel(dtype), {"data": 4}).collectives
    itemsize = jnp.dtype(dtype).itemsize
    assert found == (Collective("all-reduce", (256 * 512 + 512 * 128) * itemsize, ("data",), 4, 1, "compiled"),)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_tensor_parallel_product_is_one_all_reduce_of_its_result(dtype: Any) -> None:
    found = compiled(tensor_parallel(dtype), {"data": 4}).collectives
    assert found == (Collective("all-reduce", 2048 * 128 * jnp.dtype(dtype).itemsize, ("data",), 4, 1, "compiled"),)


@pytest.mark.parametrize("dtype", FLOATS)
def test_sharded_weights_are_gathered_twice_and_their_gradients_scattered(dtype: Any) -> None:
    """A layer's weights forward and backward, its gradient once: ZeRO-3. XLA's CPU compiler all-reduces it whole."""
    layer = 256 * 256 * jnp.dtype(dtype).itemsize
    assert set(compiled(fsdp(dtype), {"data": 4}).collectives) == {
        Collective("all-gather", layer, ("data",), 4, 12, "compiled"),
        Collective("reduce-scatter", layer, ("data",), 4, 6, "compiled"),
    }


def test_a_32_bit_exchange_that_the_program_asks_for_stays_one() -> None:
    def fn(w: Any, x: Any) -> Any:
        return jnp.dot(x, w, preferred_element_type=jnp.float32).astype(jnp.bfloat16)

    args = (array(256, 128, dtype=jnp.bfloat16), array(512, 256, dtype=jnp.bfloat16))
    found = collectives_by_compiling(fn, args, (P("data"), P(None, "data")), P(), {"data": 2}).collectives
    assert [(one.kind, one.bytes) for one in found] == [("all-reduce", 512 * 128 * 4)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("wanted", [4, 8])
def test_scaled_from_two_devices_equals_compiled(name: str, wanted: int) -> None:
    case = CASES[name](jnp.float32)
    scaled = compiled(case, {"data": wanted}, most_devices=3)
    assert scaled.sizes == ({"data": 2},)
    gathers = name == "fsdp"
    assert scaled.notes == ("how collectives scale with 'data' is a rule, not measured",) * gathers
    there = compiled(case, {"data": wanted})
    assert there.sizes == ({"data": wanted},)
    assert {replace(c, origin="compiled") for c in scaled.collectives} == set(there.collectives)


@pytest.mark.parametrize("name", CASES)
def test_scaled_by_what_twice_the_devices_show_equals_compiled(name: str) -> None:
    """Of mere sums two devices show all; what is gathered needs a second look."""
    case = CASES[name](jnp.float32)
    scaled = compiled(case, {"data": 8}, most_devices=4)
    looks = ({"data": 2}, {"data": 4}) if name == "fsdp" else ({"data": 2},)
    assert (scaled.sizes, scaled.notes) == (looks, ())
    assert {c.origin for c in scaled.collectives} == {"scaled"}
    assert {replace(c, origin="compiled") for c in scaled.collectives} == set(compiled(case, {"data": 8}).collectives)


def test_two_axes_scale_each_in_its_own_way() -> None:
    """The activations that a tensor-parallel layer sums are split by the batch's axis: its bytes halve with that."""
    fn, args, _, _ = tensor_parallel(jnp.float32)
    specs = ((P(None, "model"), P("model")), P("data"))
    found = collectives_by_compiling(fn, args, specs, P("data"), {"data": 64, "model": 8})
    assert found.collectives == (Collective("all-reduce", 2048 // 64 * 128 * 4, ("model",), 8, 1, "scaled"),)
    assert (found.sizes, found.notes) == (({"data": 2, "model": 2}, {"data": 4, "model": 2}), ())
    there = collectives_by_compiling(fn, args, specs, P("data"), {"data": 4, "model": 4})
    assert there.collectives == (Collective("all-reduce", 2048 // 4 * 128 * 4, ("model",), 4, 1, "compiled"),)


def test_thousands_of_devices_cost_no_more_than_a_few() -> None:
    found = compiled(data_parallel(jnp.float32), {"data": 2048})
    assert found.collectives == (Collective("all-reduce", (256 * 512 + 512 * 128) * 4, ("data",), 2048, 1, "scaled"),)
    assert found.sizes == ({"data": 2},)


def test_what_grows_with_the_devices_is_seen_to() -> None:
    """Where the largest element lies: each device's candidate is gathered, so there are as many as devices."""
    found = collectives_by_compiling(jnp.argmax, (array(1 << 16),), (P("data"),), P(), {"data": 4096})
    assert found.sizes == ({"data": 2}, {"data": 4})
    assert {(one.kind, one.bytes) for one in found.collectives} == {("all-gather", 4096 * 4)}


def test_no_exchange_between_devices_that_need_none() -> None:
    assert collectives_by_compiling(jnp.tanh, (array(64),), (P("data"),), P("data"), {"data": 64}).collectives == ()


def test_axes_that_cannot_be_cut_are_named() -> None:
    with pytest.raises(UsageError) as error:
        collectives_by_compiling(jnp.tanh, (array(71 * 8),), (P("data"),), P("data"), {"data": 71, "model": 2})
    assert "axis_sizes={'data': 71, 'model': 2}" in str(error.value)
    assert "take 142 devices, more than 16" in str(error.value)


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return Mesh(np.array(cpu_devices(4)[:4]), ("data",), axis_types=(AxisType.Auto,))


@pytest.mark.parametrize("name", CASES)
def test_operations_on_one_device_agree_with_the_partitioned_program(name: str, mesh: Mesh) -> None:
    """How the walk divides whole-array code, against the operations that XLA counts in one device's part."""
    fn, args, in_specs, out_specs = CASES[name](jnp.float32)
    flat_specs = jax.tree.leaves(in_specs)
    if name == "data":
        flat_specs = [P(), P(), P("data")]
    ours = work_of(jax.make_jaxpr(fn)(*args), {"data": 4}, flat_specs)
    place = lambda tree: jax.tree.map(lambda s: NamedSharding(mesh, s), tree)  # noqa: E731
    jitted = jax.jit(fn, in_shardings=place(in_specs), out_shardings=place(out_specs))
    analysis = jitted.lower(*args).compile().cost_analysis()
    assert analysis is not None
    loops = 6 if name == "fsdp" else 1  # XLA counts a loop's body once
    assert ours.flops / loops == pytest.approx(analysis["flops"], rel=0.05)


def test_the_walk_and_the_compiler_see_the_same_collectives_in_per_shard_code(mesh: Mesh) -> None:
    """A ZeRO-3 layer written out: gathered forward, its gradient scattered backward; the loss summed."""

    def shard_loss(w: Any, x: Any) -> Any:
        y = jnp.tanh(x @ jax.lax.all_gather(w, "data", tiled=True))
        return jax.lax.psum(jnp.sum(y * y), "data")

    step = jax.shard_map(
        jax.value_and_grad(shard_loss), mesh=mesh, in_specs=(P("data"), P("data")), out_specs=(P(), P("data"))
    )
    args = array(256, 128), array(512, 256)
    walked = work_of(jax.make_jaxpr(step)(*args)).collectives
    assert set(walked) == {
        Collective("all-gather", 256 * 128 * 4, ("data",), 4),
        Collective("all-reduce", 4, ("data",), 4),
        Collective("reduce-scatter", 256 * 128 * 4, ("data",), 4),
    }
    exchanges = hlo_collectives_of(parse(jax.jit(step).lower(*args).compile().as_text()), {"data": 4})
    sizes = {
        (e.kind, sum(int(np.prod(dims)) * bits // 8 for bits, dims in e.parts), e.axes, e.group) for e in exchanges
    }
    assert sizes == {(c.kind, c.bytes, c.axes, c.group) for c in walked}


GROUPS = {
    "replica_groups={{0,1},{2,3}}, x": [[0, 1], [2, 3]],
    "replica_groups={}": [[0, 1, 2, 3]],
    "replica_groups=[2,2]<=[4], x": [[0, 1], [2, 3]],
    "replica_groups=[2,2]<=[2,2]T(1,0), x": [[0, 2], [1, 3]],
    "replica_groups=mesh['a'=2,'b'=2] {'a'}, x": [[0, 2], [1, 3]],
    "replica_groups=mesh['a'=2,'b'=2] {'a','b'}, x": [[0, 1, 2, 3]],
    "replica_groups=mesh['a'=4] {'a':(1)2}": [[0, 2], [1, 3]],
    "replica_groups=mesh['a'=4] {'a':(2)2}": [[0, 1], [2, 3]],
    "replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}": [[0, 2], [1, 3]],
    "source_target_pairs={{0,1},{2,3}}": [[0, 1], [2, 3]],
    "dimensions={0}": [[0, 1, 2, 3]],
}


@pytest.mark.parametrize("written", GROUPS)
def test_groups_of_devices_in_each_way_of_writing(written: str) -> None:
    assert groups_of(written, 4).tolist() == GROUPS[written]


def test_groups_written_otherwise_are_refused() -> None:
    with pytest.raises(ValueError, match="not known: 'replica_groups=ring"):
        groups_of("replica_groups=ring(4)", 4)


def test_groups_follow_axes_or_none() -> None:
    sizes = {"a": 2, "b": 4}
    assert axes_of(np.arange(8).reshape(2, 4), sizes) == ("b",)
    assert axes_of(np.arange(8).reshape(2, 4).T, sizes) == ("a",)
    assert axes_of(np.arange(8).reshape(1, 8), sizes) == ("a", "b")
    assert axes_of(np.arange(8).reshape(4, 2), sizes) == ()  # half of "b"


MODULE = """
HloModule jit_f, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %p = (s32[], /*index=1*/f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8,4]{1,0} get-tuple-element(%p), index=1
  %r = f32[8,4]{1,0} all-reduce(%x), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %t = (s32[], f32[8,4]{1,0}) tuple(%i, %r)
}

%test (q: (s32[], f32[8,4])) -> pred[] {
  %q = (s32[], f32[8,4]{1,0}) parameter(0)
  ROOT %k = pred[] constant(true)
}

ENTRY %main (p0: f32[8,4], n: s32[]) -> f32[16,4] {
  %p0 = f32[8,4]{1,0} parameter(0), sharding={devices=[2,1]<=[2]}
  %n = s32[] parameter(1)
  %s = (s32[], f32[8,4]{1,0}) tuple(%n, %p0)
  %w = (s32[], f32[8,4]{1,0}) while(%s), condition=%test, body=%body<TRIPS>
  %y = f32[8,4]{1,0} get-tuple-element(%w), index=1
  %z = f32[8,4]{1,0} collective-permute(%y), channel_id=2, source_target_pairs={{0,2},{2,0},{1,3},{3,1}}
  ROOT %g = f32[16,4]{1,0} all-gather(%z), channel_id=3, replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}
}
"""


def test_loops_count_their_known_length() -> None:
    sizes = {"a": 2, "b": 2}
    known = MODULE.replace("<TRIPS>", ', backend_config={"known_trip_count":{"n":"6"}}')
    found = hlo_collectives_of(parse(known), sizes)
    assert [(e.kind, e.parts, e.axes, e.times, e.sure) for e in found] == [
        ("all-reduce", ((32, (8, 4)),), ("b",), 6, True),
        ("permute", ((32, (8, 4)),), ("a",), 1, True),
        ("all-gather", ((32, (16, 4)),), ("a",), 1, True),
    ]
    unknown = hlo_collectives_of(parse(MODULE.replace("<TRIPS>", "")), sizes)
    assert [(e.times, e.sure) for e in unknown] == [(1, False), (1, True), (1, True)]


def test_text_that_is_no_module_is_refused() -> None:
    with pytest.raises(ValueError, match="no line that begins with ENTRY"):
        parse("hello")
    with pytest.raises(ValueError, match="No instruction of a compiled XLA module: 'what is this'"):
        parse("ENTRY %main (p: f32[]) -> f32[] {\n  what is this\n}")


def test_an_option_that_this_jax_lacks_is_left_out(monkeypatch) -> None:
    wished = {"xla_backend_optimization_level": 0, "xla_option_of_tomorrow": 1, "xla_option_of_yesterday": True}
    monkeypatch.setattr(quick_compiling, "_WISHED", wished)
    find = quick_compiling.quick_options.__wrapped__
    assert find() == {"xla_backend_optimization_level": 0}


def test_whatever_else_goes_wrong_with_options_is_told(monkeypatch) -> None:
    def fail(*asked: Any, **options: Any) -> None:
        raise jax.errors.JaxRuntimeError("out of memory")

    monkeypatch.setattr(jax.stages.Lowered, "compile", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of memory"):
        quick_compiling.quick_options.__wrapped__()
