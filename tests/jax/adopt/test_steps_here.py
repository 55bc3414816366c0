"""Steps on the devices that their arguments are on: called as nodes, seen in blocks, predicted and profiled."""

from __future__ import annotations

import pytest

BEGIN = """
import jax
jax.config.update("jax_num_cpu_devices", 4)
import numpy as np
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P
import pathways_nb as pw
from tests.support import steps_here
from tests.support.closeness import close
from tests.support.steps_here import batch, mesh_of, nnx_model, nnx_step
"""


@pytest.fixture
def run(fresh_python):
    """Run code on four of JAX's own CPU devices."""

    def runs(code: str, **environment: str) -> str:
        done = fresh_python(BEGIN + code, **environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout + done.stderr

    return runs


def test_calls_of_every_framework_are_nodes_with_the_results_of_plain_jax(run):
    said = run("""
pw.attach("cpu", islands=[[0, 1, 2, 3]])
# Layers of Equinox and Linen have no out_sharding, which explicit axes need.
frameworks = [(AxisType.Auto, make) for make in (steps_here.plain, steps_here.equinox, steps_here.linen)]
for kind, make in [*frameworks, (AxisType.Explicit, steps_here.plain)]:
    mesh = mesh_of(kind)
    (step, ours), (_, theirs), x = make(mesh), make(mesh), batch(mesh)
    adopted = pw.adopt(step, ours, x)
    with jax.set_mesh(mesh):
        with pw.client("trainer"), pw.record() as run:
            for _ in range(3):
                ours, loss = adopted(ours, x)
            assert isinstance(loss, pw.Future)
            ours, loss = pw.get((ours, loss))
        for _ in range(3):
            theirs, plain = step(theirs, x)
    assert list(run.events.of_kind("compute")["name"]) == ["train_step"] * 3
    assert set(run.events.of_kind("compute")["client"]) == {"trainer"}
    close(loss, plain)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if hasattr(one, "shape"):
            close(np.asarray(one), np.asarray(other))
""")
    assert "attached" not in said


def test_a_model_that_is_changed_in_place_is_changed(run):
    said = run("""
mesh = mesh_of(AxisType.Auto)
x = batch(mesh)
(ours, optimizer), (theirs, other) = nnx_model(mesh), nnx_model(mesh)
adopted = pw.adopt(nnx_step, ours, optimizer, x)
for _ in range(3):
    loss, plain = adopted(ours, optimizer, x), nnx_step(theirs, other, x)
close(float(loss), float(plain))
close(np.asarray(ours.up.kernel[...]), np.asarray(theirs.up.kernel[...]))
assert int(optimizer.step[...]) == 3
assert isinstance(ours.up.kernel[...], jax.Array) and ours.up.kernel[...].sharding.spec == P(None, "model")
""")
    assert "attached cpu: 1 island × 4 devices, those that the arguments are on" in said


def test_what_cannot_run_here_says_why(run):
    run("""
mesh = mesh_of(AxisType.Auto)
step = jax.jit(lambda w, x: x @ w)
w, x = jax.device_put(jnp.ones((64, 64)), NamedSharding(mesh, P(None, "model"))), batch(mesh)

def fails(kind, call, *texts):
    try:
        call()
    except kind as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise SystemExit(f"no {kind}")

fails(pw.PlaceError, lambda: pw.adopt(step, w, x, mesh={"data": 4, "model": 2}), "it needs 8 devices, and 4 are here")
shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(mesh.abstract_mesh, a.sharding.spec)) for a in (w, x)]
fails(pw.ShardingError, lambda: pw.adopt(step, *shapes), "shapes on a mesh without devices", "chip=")
adopted = pw.adopt(step, w, x)
pw.attach("cpu", islands=1, devices_per_island=4)
fails(pw.UsageError, lambda: adopted(w, x), "the arguments are on 4 × cpu (JAX's 0, 1, 2, 3)", "has just these",
      'pw.attach("cpu", islands=[[0, 1, 2, 3]])')
pw.attach("sim:tpu_v4:1x4")
fails(pw.UsageError, lambda: adopted(w, x), "has just these")
pw.attach("cpu", islands=[[0, 1, 2, 3]])
close(adopted(w, x).result(), np.asarray(x) @ np.ones((64, 64)))
turned = pw.adopt(step, w, x, mesh={"model": 1, "data": 4})
assert dict(turned.mesh) == {"data": 4, "model": 1} and [*turned.mesh] == ["data", "model"], "axes in the step's order"

@jax.tree_util.register_pytree_node_class
class Box:
    def __init__(self, value): self.value = value
    def tree_flatten(self): return (self.value,), None
    @classmethod
    def tree_unflatten(cls, _, leaves): return cls(*leaves)

class Step:
    lower = None
    def __call__(self, box, x):
        box.value = step(box.value, x)
        return box.value
fails(pw.UsageError, lambda: pw.adopt(Step(), Box(w), x)(Box(w), x), "changes its arguments in place", "no objects of Flax NNX")
""")


def test_a_prediction_here_is_of_the_program_that_runs(run):
    run(
        """
mesh = mesh_of(AxisType.Auto)
step, state = steps_here.plain(mesh)
x = batch(mesh)
adopted = pw.adopt(step, state, x)
rows = adopted.collectives().rows
assert {"all-reduce"} <= {row.kind for row in rows} and all(row.line.startswith("steps_here.py:") for row in rows if row.line), rows
assert max(row.devices for row in rows) == 2 and {axis for row in rows for axis in row.axes} == {"data", "model"}
compiled = step.lower(state, x).compile().memory_analysis()
assert adopted.memory().arguments == compiled.argument_size_in_bytes
assert 0 < adopted.seconds.low <= adopted.seconds <= adopted.seconds.high
assert "on 4 × cpu, data 2 × model 2" in adopted.summary and adopted.memory().fits
with pw.profile() as run:
    for _ in range(3):
        state, loss = adopted(state, x)
both = pw.compare(adopted, run)
matched = both.op_difference
assert len(matched) > 10 * matched.only_a, (len(matched), matched.only_a, matched.only_b)
assert both.a.name == adopted.where and len(both.b.events.of_kind("compute")) == 1
adopted.save("a.step")
assert pw.load("a.step").collectives().rows == rows
""",
        XLA_FLAGS="",
        JAX_ENABLE_COMPILATION_CACHE="false",
    )


def test_jitted_functions_are_seen_in_a_block_those_of_libraries_are_not(run):
    run("""
mesh = mesh_of(AxisType.Auto)
x = batch(mesh)
step, state = steps_here.plain(mesh)
theirs, optimizer = nnx_model(mesh)
ours, other = nnx_model(mesh)
plain = step(jax.tree.map(jnp.copy, state), x)[1]
nnx_step(theirs, optimizer, x)  # compiled before: seen all the same
with pw.record(adopt="here") as run:
    for _ in range(2):
        state, loss = step(state, x)
        if _ == 0:
            close(float(loss), float(plain))
    value = nnx_step(ours, other, x)
    jnp.mean(x)
    jax.random.normal(jax.random.key(0), (3,))
    jax.jit(lambda v: v + 1)(1.0)
assert isinstance(loss, jax.Array) and isinstance(value, jax.Array)
close(np.asarray(ours.up.kernel[...]), np.asarray(theirs.up.kernel[...]))
names = [one.name for one in run.adopted]
assert names.count("nnx_step") == 1 and "train_step" in names and set(names) == {"train_step", "nnx_step", "<lambda>"}, names
assert sum(n for one, n in zip(run.adopted, run.adopted.calls) if one.name == "train_step") == 2
assert set(run.events.of_kind("compute")["name"]) == {"train_step", "nnx_step"}
assert list(run.adopted.refused) == ["<lambda>"] and "ran beside the controller" in run.adopted.refused["<lambda>"]
""")
