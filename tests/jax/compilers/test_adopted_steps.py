"""Steps that were not written for this package, compiled for chips that are not here, by those chips' compilers."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import pathways_nb as pw
from pathways_nb.__main__ import main
from pathways_nb.adopt import adopted_step
from pathways_nb.adopt.adopted_step import adopt
from pathways_nb.cost.launch.constants import constants
from tests.support import placed_shapes
from tests.support.placed_shapes import columns

P = PartitionSpec
MESH = AbstractMesh((1, 1), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
SIZES = {"data": 4, "model": 4}
D = 1024
CHIPS = ("gpu_h100_sxm", "tpu_v5p:2x2x4")


on = functools.partial(placed_shapes.on, MESH)


class Model(nnx.Module):
    """Two layers of Flax."""

    def __init__(self, rngs: nnx.Rngs):
        self.up, self.down = nnx.Linear(D, 4 * D, rngs=rngs), nnx.Linear(4 * D, D, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(nnx.relu(self.up(x)))


def flax_step() -> tuple[Any, ...]:
    """A step of Flax NNX with its arguments; shapes only."""
    model = nnx.eval_shape(lambda: Model(nnx.Rngs(0)))
    optimizer = nnx.eval_shape(lambda: nnx.Optimizer(Model(nnx.Rngs(0)), optax.adam(1e-3), wrt=nnx.Param))

    @nnx.jit(donate_argnums=(0, 1))
    def train_step(model: Any, optimizer: Any, x: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        optimizer.update(model, gradients)
        return loss

    batch = on(jax.ShapeDtypeStruct((256, D), jnp.float32), P("data"))
    return train_step, on(model, columns), on(optimizer, columns), batch


def equinox_step() -> tuple[Any, ...]:
    """A step of Equinox with its arguments."""
    model = eqx.nn.MLP(D, D, 4 * D, 2, key=jax.random.key(0))
    adam = optax.adam(1e-3)
    state = adam.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit(donate="all")
    def make_step(model: Any, state: Any, x: Any) -> Any:
        loss, gradients = eqx.filter_value_and_grad(lambda model: (jax.vmap(model)(x) ** 2).mean())(model)
        updates, state = adam.update(gradients, state, model)
        return eqx.apply_updates(model, updates), state, loss

    batch = on(jax.ShapeDtypeStruct((256, D), jnp.float32), P("data"))
    return make_step, on(model, columns), on(state, columns), batch


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("made", [flax_step, equinox_step])
def test_a_frameworks_step_says_which_line_exchanges_what(chip, made, tmp_path):
    step = adopt(*made(), chip=chip, mesh=SIZES)
    assert 0 < step.seconds.low < step.seconds < step.seconds.high
    rows = step.collectives().rows
    assert rows, "gradients of replicas are added up"
    assert all(row.line.startswith("test_adopted_steps.py:") for row in rows if row.bytes > 1e4)
    assert [row.exposed for row in rows] == sorted((row.exposed for row in rows), reverse=True)
    # Gradients of the parameters, each of its model's part, are added up over the data.
    weights = sum(one.size * 4 for one in jax.tree.leaves(made()[1]) if hasattr(one, "size")) / 4
    moved = sum(
        row.bytes * row.count for row in rows if "data" in row.axes and row.kind in ("all-reduce", "reduce-scatter")
    )
    assert 0.9 * weights < moved < 1.6 * weights
    memory = step.memory()
    assert memory.fits
    # Parameters and two moments, donated, of this device's part.
    assert memory.peak > 3 * weights
    assert sum(memory.by_category.values()) <= 1.05 * memory.peak
    run = step.timeline()
    assert len(run.ops)
    assert run.events["end"].max() == pytest.approx(step.seconds)
    step.save(tmp_path / "a.step")
    assert pw.load(tmp_path / "a.step").collectives() == step.collectives()


def test_elsewhere_and_from_the_cache(monkeypatch):
    here = adopt(*flax_step(), chip="gpu_h100_sxm", mesh=SIZES)
    other = here.on(mesh={"data": 16, "model": 1})
    assert other.mesh == {"data": 16, "model": 1}
    assert {axis for row in other.collectives().rows for axis in row.axes} == {"data"}
    assert other.seconds != here.seconds
    monkeypatch.setattr(adopted_step, "compile_blocks", None)
    again = adopt(*flax_step(), chip="gpu_h100_sxm", mesh={"data": 16, "model": 1})
    assert again.seconds == other.seconds
    assert again.collectives() == other.collectives()


def test_what_does_not_fit_says_by_how_much_and_which_buffers():
    rows = 1 << 23
    step = jax.jit(lambda w, x: x @ w @ w.T)
    layout = on(jax.ShapeDtypeStruct((4096, 8192), jnp.float32), P())
    wide = on(jax.ShapeDtypeStruct((rows, 4096), jnp.float32), P("data"))
    adopted = adopt(step, layout, wide, chip="gpu_h100_sxm", mesh=SIZES)
    assert not adopted.memory().fits
    with pytest.raises(
        pw.OutOfMemoryError,
        match=r"<lambda> does not fit on 16 × gpu_h100_sxm, data 4 × model 4: it needs [\d.]+ GB, [\d.]+ GB more than "
        r"the 80 GB of a device\. Its largest buffers: 68\.7 GB f32\[2097152,8192\]",
    ):
        _ = adopted.seconds


def test_a_loop_that_ends_by_its_data_asks_how_often_it_runs():
    step = jax.jit(lambda w, x: jax.lax.while_loop(lambda c: c.sum() < 9.0, lambda c: jnp.tanh(c @ w) @ w.T, x))
    arguments = on(jnp.ones((D, D)), columns), on(jnp.ones((64, D)), P("data"))
    with pytest.raises(
        pw.UsageError,
        match=r"adopt: the loop \S+ at test_adopted_steps\.py:\d+ runs an unknown number of times, as its data "
        r"decides\. Say how often: pw\.adopt\(…, trips=100\)\.",
    ):
        _ = adopt(step, *arguments, chip="gpu_h100_sxm", mesh=SIZES).seconds
    few, many = (adopt(step, *arguments, chip="gpu_h100_sxm", mesh=SIZES, trips=trips).seconds for trips in (10, 100))
    assert many == pytest.approx(10 * few, rel=0.1)


@pytest.mark.parametrize("chip", ["gpu_h100_sxm", "tpu_v5e:4x4"])
def test_a_layout_without_a_direct_way_is_flagged_where_it_is_copied(chip):
    def step(w: Any, x: Any) -> Any:
        made = jax.lax.with_sharding_constraint(x @ w, NamedSharding(MESH, P("model", None, "data")))
        rows = jax.lax.with_sharding_constraint(jnp.tanh(made), NamedSharding(MESH, P(None, ("data", "model"))))
        return (rows * rows + rows).sum()

    first = step.__code__.co_firstlineno
    arguments = (
        on(jax.ShapeDtypeStruct((D, D), jnp.bfloat16), columns),
        on(jax.ShapeDtypeStruct((64, 512, D), jnp.bfloat16), P("data")),
    )
    adopted = adopt(jax.jit(step), *arguments, chip=chip, mesh=SIZES)
    rows = adopted.collectives().rows
    (copied,) = [row for row in rows if "copied whole" in row.flag]
    assert copied.kind == "all-gather"
    # Of the line that reads the value, or, by newer compilers, of its own.
    assert copied.line in [f"test_adopted_steps.py:{first + at}" for at in (1, 2)]
    assert f"no direct way from the layout of test_adopted_steps.py:{first + 1}" in copied.flag
    tried = adopted.try_flagged()
    best = tried.rows[0]
    assert {row.constraints[0].line for row in tried.rows} <= {f"test_adopted_steps.py:{first + at}" for at in (1, 2)}
    assert best.saved > 0.3 * copied.exposed
    assert best.saved == adopted.collectives().exposed - best.step.collectives().exposed
    assert best.seconds == adopted.seconds - best.step.seconds
    assert repr(best).startswith("without the constraint at test_adopted_steps.py:")
    assert " → " in repr(best)
    assert adopted.try_line(best.constraints[0].line).saved == best.saved


def test_several_slices_exchange_by_the_hosts_network():
    arguments = on(jnp.ones((2, D, D)), P(None, None, "model")), on(jnp.ones((4096, D)), P("data"))

    def loss(w: Any, x: Any) -> Any:
        return (jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]) ** 2).sum()

    one, two = (
        adopt(jax.jit(jax.grad(loss)), *arguments, chip=f"tpu_v5e:{said}", mesh={"data": 8, "model": 4})
        for said in ("4x8", "4x4*2")
    )
    assert (one.slices, two.slices, two.topology.shape) == (1, 2, (4, 4))
    (sent,) = [row for row in two.collectives().rows if "between slices" in row.flag]
    assert (sent.kind, sent.devices, sent.axes) == ("all-reduce", 2, ("data",))
    assert sent.line.startswith("test_adopted_steps.py:")
    # Of the gradient of this device's part of the weights what one of the 4 devices of a slice has added up.
    assert sent.bytes * sent.count == pytest.approx(2 * D * D / 4 * 4 / 4, rel=0.1)
    assert not any("between slices" in row.flag for row in one.collectives().rows)
    assert two.seconds > one.seconds + 0.5 * sent.exposed


def test_between_slices_only_those_who_take_part_count():
    def body(x: Any) -> Any:
        x = jax.lax.ppermute(jax.lax.psum(x, "data"), "data", [(at, (at + 1) % 8) for at in range(8)])
        return jax.lax.all_to_all(x, "data", 0, 0, tiled=True)

    def step(mesh: Any) -> Any:
        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P(("stage", "data")), out_specs=P(("stage", "data"))))

    mesh = AbstractMesh((1, 1), ("stage", "data"), axis_types=(AxisType.Auto,) * 2)
    x = placed_shapes.on(mesh, jnp.ones((16 * D, D)), P(("stage", "data")))
    found = adopt(step, x, chip="tpu_v5e:2x2*4", mesh={"stage": 2, "data": 8})
    rows = {row.kind: row for row in found.collectives().rows if "between slices" in row.flag}
    # Each of two stages is two slices, which the other axis joins.
    assert {row.axes for row in rows.values()} == {("data",)}
    assert {kind: row.devices for kind, row in rows.items()} == {"all-reduce": 2, "permute": 2, "all-to-all": 8}
    known, whole = constants("tpu_v5e"), 4 * D * D
    # Of the 4 chips of a slice all send their quarter of a sum, one the last chip's array, and all half of theirs.
    sent = {"all-reduce": 4 * whole / 4, "permute": whole, "all-to-all": 4 * whole / 2}
    for kind, bytes_ in sent.items():
        assert rows[kind].seconds == pytest.approx(bytes_ / known.slice_bw, rel=0.05), kind


def test_a_sweep_of_a_step_says_what_does_not_fit_or_divide():
    step = adopt(*flax_step(), chip="gpu_h100_sxm", mesh=SIZES)
    small = pw.chip("gpu_h100_sxm").replace(hbm_bytes=10e6)
    found = pw.sweep(step, chip=["gpu_h100_sxm", small], mesh=[SIZES, {"data": 16, "model": 3}])
    fits, uneven, large, _ = found.rows
    assert fits["seconds"] == step.seconds
    assert (fits["devices"], fits["peak_bytes"], fits["error"]) == (16, step.memory().peak, "")
    assert "16 devices do not divide" in uneven["error"] or "3 devices do not divide" in uneven["error"]
    assert large["seconds"] is None
    assert re.fullmatch(r"needs [\d.]+ MB, [\d.]+ MB more than the 10 MB of a device", large["error"])
    assert "data 4 × model 4" in repr(found)
    assert found.plot(x="mesh", by="chip") is not None
    with pytest.raises(
        pw.UsageError, match=r"sweep\(batch=…\): an adopted step goes to another chip, mesh, options; for"
    ):
        pw.sweep(step, batch=[1])


def test_what_is_left_out_is_said():
    def loss(w: Any, x: Any) -> Any:
        jax.debug.print("{}", x.sum())
        return jnp.tanh(x @ w).sum()

    arguments = on(jnp.ones((D, D)), columns), on(jnp.ones((64, D)), P("data"))
    step = adopt(jax.jit(jax.grad(loss)), *arguments, chip="gpu_h100_sxm", mesh=SIZES)
    (note,) = [one for one in step.notes if "printed" in one]
    assert note.startswith("what is printed at test_adopted_steps.py:")
    assert note in step.timeline().summary_line()


def test_chips_topologies_and_options_that_do_not_exist_say_what_does(monkeypatch):
    step = flax_step()
    with pytest.raises(
        pw.PlaceError, match=r"'tpu_v5p:2x2x2'\): this topology has 8 devices, and the mesh 16\. Change one"
    ):
        adopt(*step, chip="tpu_v5p:2x2x2", mesh=SIZES)
    with pytest.raises(pw.PlaceError, match=r"'tpu_v5p:four'\): write the topology as tpu_v5p:4x4x8, or of"):
        adopt(*step, chip="tpu_v5p:four", mesh=SIZES)
    with pytest.raises(
        pw.UsageError, match=r"has no option 'xla_gpu_enable_triton_gemm'\. It is one of GPUs: leave it out\."
    ):
        adopt(*step, chip="tpu_v5p", mesh=SIZES, options={"xla_gpu_enable_triton_gemm": False})
    with pytest.raises(
        pw.UsageError, match=r"gpu_h100_sxm, jax-cuda\S+ \S+, has no option 'xla_no'\. Correct its name"
    ):
        _ = adopt(*step, chip="gpu_h100_sxm", mesh=SIZES, options={"xla_no": True}).seconds
    with pytest.raises(pw.UsageError, match=r"no routes for a torus of 3 × 7 chips of tpu_v5e; .* tpu_v5e:4x4, "):
        _ = adopt(jax.jit(jnp.sum), on(jnp.ones((21, D)), P("data")), chip="tpu_v5e:3x7", mesh={"data": 21}).seconds
    with pytest.raises(pw.UsageError, match="did you mean 'gpu_h100_sxm'"):
        adopt(*step, chip="gpu_h100", mesh=SIZES)
    with pytest.raises(pw.UsageError, match=r"preset\('nvidia'\): there are no such compiler options; there is"):
        adopt(*step, chip="gpu_h100_sxm", mesh=SIZES, options="nvidia")
    with pytest.raises(pw.PlaceError, match=r"it needs 16 devices, and 1 are here\. Name the chip"):
        adopt(*step, mesh=SIZES)
    with pytest.raises(pw.ShardingError, match=r"adopt\(mesh=16\): write the devices along each axis"):
        adopt(*step, mesh=16)


def test_the_command_checks_a_step_against_what_it_was(tmp_path, capsys):
    source = Path(__file__).read_text()
    code = source[source.index("import equinox") : source.index('@pytest.mark.parametrize("chip", CHIPS)')]
    code = code.replace("from pathways_nb.adopt.adopted_step import adopt\n", "").replace("import pytest\n", "")
    (tmp_path / "mine.py").write_text(
        f"from __future__ import annotations\nimport functools\nfrom typing import Any\n{code}\nstep = flax_step\n"
    )
    asked = ["adopt", f"{tmp_path}/mine.py::step", "--chip", "gpu_h100_sxm", "--mesh", "data=4,model=4"]
    try:
        assert main([*asked, "--save", f"{tmp_path}/old.step", "--budget", "memory=1GB,exposed=1"]) == 0
        assert "train_step on 16 × gpu_h100_sxm, data 4 × model 4: " in capsys.readouterr().out
        assert main([*asked, "--against", f"{tmp_path}/old.step"]) == 0
        assert "TOO MUCH" not in capsys.readouterr().out
        assert main([*asked, "--budget", "exposed=1e-9"]) == 1
        assert "TOO MUCH exposed: " in capsys.readouterr().out
        assert main(["adopt", f"{tmp_path}/mine.py::nothing", "--chip", "gpu_h100_sxm"]) == 1
        assert "mine.py has no nothing." in capsys.readouterr().err
        assert main([*asked, "--against", f"{tmp_path}/mine.py"]) == 1
        assert "this is no file that adopt --save wrote" in capsys.readouterr().err
        assert main([*asked, "--against", f"{tmp_path}/none.step"]) == 1
        assert "none.step: there is no such file. adopt --save writes one." in capsys.readouterr().err
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("mine")
