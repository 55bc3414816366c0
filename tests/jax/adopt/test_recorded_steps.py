"""A step without its compiler: the recorded text of an equal step answers, and only of an equal one."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import pathways_nb as pw
from pathways_datasets import packaged_tables
from pathways_nb.adopt import recorded_step
from pathways_nb.adopt.adopted_step import adopt
from pathways_nb.adopt.step_fingerprint import counted_in, fingerprint_of
from pathways_nb.adopt.taken_step import take
from pathways_nb.compilers import packages, targets
from pathways_nb.compilers.compiling import CompiledText
from pathways_nb.cost.hardware.topology import make_topology
from pathways_nb.program.compiled_blocks import CompiledBlocks
from tests.core.adopt.test_collective_table import TEXT
from tests.support import placed_shapes
from tests.support.placed_shapes import columns

P = PartitionSpec
MESH = AbstractMesh((1, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
MESH_8 = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
SIZES = {"data": 4, "model": 2}
D = 64
on = functools.partial(placed_shapes.on, MESH)
HIDDEN = P("data", None, "model")


def step_with(
    layout: PartitionSpec = HIDDEN,
    layers: int = 3,
    heads: tuple[int, ...] = (4, -1),
    rate: float = 0.1,
    activation: Any = jax.nn.gelu,
    early: bool = False,
    **options: Any,
) -> Any:
    """A step with attention, normalisation and a repeated layer whose hidden values have a layout."""

    def block(x: Any, w: Any) -> tuple[Any, None]:
        q = (x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True))).reshape(*x.shape[:2], *heads)
        x = x + jax.nn.dot_product_attention(q, q, q, is_causal=True).reshape(x.shape)
        constrained = functools.partial(jax.lax.with_sharding_constraint, shardings=NamedSharding(MESH, layout))
        hidden = activation(constrained(x @ w)) if early else constrained(activation(x @ w))
        return x + hidden @ w.T, None

    @functools.partial(jax.jit, **options)
    def train_step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            y, _ = jax.lax.scan(jax.checkpoint(block), x, jnp.broadcast_to(w, (layers, *w.shape)))
            return -jax.nn.log_softmax(y).mean()

        return w - rate * jax.grad(loss)(w)

    return train_step


def arguments(rows: int = 32) -> tuple[Any, Any]:
    """Weights and a batch, as shapes."""
    shapes = jax.ShapeDtypeStruct((D, 4 * D), jnp.float32), jax.ShapeDtypeStruct((rows, 16, D), jnp.float32)
    return on(shapes[0], columns), on(shapes[1], P("data"))


@pytest.fixture
def _recorded(tmp_path, monkeypatch):
    """A record of the step, made from a text whose collectives are on two lines of another source; no compiler."""
    target = targets.target(make_topology(pw.chip("gpu_h100_sxm"), 8))
    taken = take(step_with(), arguments(), {}, SIZES)
    _, block = lines()
    ours = inspect.getsourcefile(step_with)
    text = TEXT.replace("/home/me/train.py", str(ours)).replace("line=12 end_line=12", f"line={block} end_line={block}")
    made = CompiledText(text, "", "", "", ({"process": 0},) * 8, "jax-cuda13-plugin 0.10.2")
    with recorded_step.recording(tmp_path / "recorded" / "steps"):
        recorded_step.keep(taken, target, {}, CompiledBlocks((made,), (1,), 1, (0,)), "gpu_h100_sxm")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(packaged_tables, "_steps_folder", lambda: tmp_path / "recorded" / "steps")
    monkeypatch.setattr(packages, "is_installed", lambda kind: False)


def lines() -> tuple[str, int]:
    """The file of the step, and the line of the product with its weights."""
    source, first = inspect.getsourcelines(step_with)
    at = next(number for number, line in enumerate(source) if "activation(x @ w)" in line)
    return inspect.getsourcefile(step_with) or "", first + at


@pytest.mark.usefixtures("_recorded")
def test_an_equal_step_is_answered_with_its_own_lines_and_says_so():
    step = adopt(step_with(), *arguments(), chip="gpu_h100_sxm", mesh=SIZES)
    assert step.seconds > 0
    gather = next(row for row in step.collectives().rows if row.kind == "all-gather")
    assert gather.line == f"test_recorded_steps.py:{lines()[1]}"
    (note,) = step.notes
    assert note == (
        f"from a recorded text of jax-cuda13-plugin 0.10.2 and JAX {jax.__version__}, as the compiler is not installed "
        f"here (of an equal step: same name, chip, mesh, options, arguments, and every operation with its constants)"
    )
    assert note in step.timeline().summary_line()


@pytest.mark.usefixtures("_recorded")
def test_prices_may_differ_and_the_text_is_the_same():
    slow = pw.chip("gpu_h100_sxm").replace(link_bw=1e9)
    here, other = (adopt(step_with(), *arguments(), chip=chip, mesh=SIZES) for chip in ("gpu_h100_sxm", slow))
    assert other.seconds > here.seconds


@pytest.mark.usefixtures("_recorded")
@pytest.mark.parametrize(
    "asked",
    [
        {"step": step_with(P("data"))},
        {"step": step_with(layers=4)},
        {"step": step_with(heads=(2, -1))},
        {"step": step_with(rate=0.2)},
        {"step": step_with(activation=lambda x: jax.nn.relu(jax.nn.gelu(x)))},
        {"step": step_with(activation=lambda x: jax.nn.gelu(x).astype(jnp.bfloat16).astype(jnp.float32))},
        {"step": step_with(early=True)},
        {"step": step_with(P("data", P.UNCONSTRAINED, "model"))},
        {"step": step_with(donate_argnums=0)},
        {"args": arguments(64)},
        {"mesh": {"data": 8, "model": 1}},
        {"options": {"xla_gpu_enable_pipelined_all_gather": True}},
        {"chip": pw.chip("gpu_h100_sxm").replace(hbm_bytes=40e9)},
    ],
    ids=[
        *("constraint", "layers", "heads", "constant", "activation", "type", "order", "free", "donated"),
        *("shape", "mesh", "options", "memory"),
    ],
)
def test_another_step_is_not_found_and_the_error_says_what_is_recorded(asked):
    kept = {"step": step_with(), "args": arguments(), "mesh": SIZES, "options": None, "chip": "gpu_h100_sxm"} | asked
    with pytest.raises(
        pw.UsageError,
        match=r"^adopt\(train_step\): the GPU compiler, which gpu_h100_sxm.* needs, is not installed, and no recorded "
        r"text matches this step on 8 × gpu_h100_sxm.*, data \d × model \d; recorded are 8-gpu_h100_sxm-data4-model2, with "
        r"other options, arguments or code\. `python -m pathways_nb compilers install gpu` installs it",
    ):
        adopt(kept.pop("step"), *kept.pop("args"), **kept)


def test_without_any_record_of_its_name_nothing_is_listed(monkeypatch):
    monkeypatch.setattr(packages, "is_installed", lambda kind: False)
    with pytest.raises(pw.UsageError, match=r"matches this step on 8 × gpu_h100_sxm, data 4 × model 2\. `python"):
        adopt(jax.jit(lambda w, x: x @ w), *arguments(), chip="gpu_h100_sxm", mesh=SIZES)


@pytest.mark.usefixtures("_recorded")
@pytest.mark.parametrize("library", [jax, optax])
def test_another_version_compares_what_versions_write_alike_and_says_so(library, monkeypatch):
    monkeypatch.setattr(library, "__version__", "0.99")
    (note,) = adopt(step_with(rate=0.2), *arguments(), chip="gpu_h100_sxm", mesh=SIZES).notes
    assert note.endswith(
        "the number of operations of each kind and shape; constants and elementwise operations are not compared, as "
        "versions of JAX and of libraries write them differently)"
    )


def test_what_exchanges_and_loops_do_is_part_of_a_fingerprint():
    def key(body: Any) -> list[str]:
        traced = jax.make_jaxpr(
            jax.shard_map(body, mesh=MESH_8, in_specs=P("data"), out_specs=P("data"), check_vma=False)
        )
        return [one.key for one in counted_in(traced(jnp.zeros((8, 8))))]

    bodies = [
        lambda x: jax.lax.ppermute(x, "data", [(0, 1)]),
        lambda x: jax.lax.ppermute(x, "data", [(0, 2)]),
        lambda x: jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] + 1, c[1] + 1), (x, 0))[0],
        lambda x: jax.lax.while_loop(lambda c: c[1] < 9, lambda c: (c[0] + 1, c[1] + 1), (x, 0))[0],
        lambda x: jax.lax.scan(lambda c, _: (c + 1, None), x, None, 4)[0],
        lambda x: jax.lax.scan(lambda c, _: (c + 1, None), x, None, 4, unroll=2)[0],
        lambda x: jax.lax.cumsum(x, 0),
        lambda x: jax.lax.cumsum(x, 1),
        lambda x: jax.lax.psum(x, "data"),
        lambda x: jax.lax.psum(x, "data", axis_index_groups=[[0, 1], [2, 3]]),
    ]
    assert len({str(key(body)) for body in bodies}) == len(bodies)


def test_a_step_has_one_fingerprint_whatever_the_version_of_jax():
    taken = take(step_with(), arguments(), {}, SIZES)
    target = targets.target(make_topology(pw.chip("tpu_v5p"), 8))
    assert fingerprint_of(taken, target, {}, list(counted_in(taken.jaxpr))) == "f74b54e2b42e91fb"
