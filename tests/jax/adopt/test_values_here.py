"""What runs here gives plain JAX's values: steps whose types, settings, layouts or shared parts are unusual."""

from __future__ import annotations

import pytest

BEGIN = """
import jax
jax.config.update("jax_num_cpu_devices", 4)
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import pathways_nb as pw
from tests.support.closeness import close

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
x = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8) / 64, NamedSharding(mesh, P("data")))

def equal(ours, theirs):
    for one, other in zip(jax.tree.leaves(pw.get(ours)), jax.tree.leaves(theirs), strict=True):
        assert one.dtype == other.dtype
        close(np.asarray(one, np.float32), np.asarray(other, np.float32))
"""


@pytest.fixture
def run(fresh_python):
    """Run code on four of JAX's own CPU devices."""

    def runs(code: str) -> None:
        done = fresh_python(BEGIN + code)
        assert done.returncode == 0, done.stderr[-3000:]

    return runs


def test_calls_differ_by_weak_types_settings_and_the_sign_of_zero(run):
    run("""
scaled = jax.jit(lambda x, scale: x.astype(jnp.bfloat16) * scale)
adopted = pw.adopt(scaled, x, jnp.asarray(2.0))
for scale in (jnp.asarray(2.0), jnp.asarray(2.0, jnp.float32), jnp.asarray(2.0)):
    equal(adopted(x, scale), scaled(x, scale))

shifted = jax.jit(lambda x, one: x + 1 / jnp.asarray(one))
adopted = pw.adopt(shifted, x, 0.0)
for one in (0.0, -0.0, np.float32(0.0), np.float32(-0.0)):
    equal(adopted(x, one), shifted(x, one))

wide = jax.jit(lambda x: x + jnp.zeros((), float).dtype.itemsize)
adopted = pw.adopt(wide, x)
equal(adopted(x), wide(x))
with jax.enable_x64(True):
    equal(adopted(x), wide(x))
""")


def test_calls_in_a_block_keep_layouts_of_results_numbers_and_the_order_of_devices(run):
    run("""
def doubled(x):
    return x * 2

turned = Mesh(mesh.devices[::-1, ::-1], mesh.axis_names)
other = jax.device_put(np.asarray(x), NamedSharding(turned, P("data")))
columns, rows = (jax.jit(doubled, out_shardings=NamedSharding(mesh, P(*spec))) for spec in ((None, "model"), ("model",)))
placed = jax.jit(doubled, in_shardings=NamedSharding(mesh, P("data")))
constant = jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, P("model")))
calls = [
    lambda: columns(x), lambda: rows(x), lambda: placed(np.asarray(x)),
    lambda: jax.jit(doubled)(other),
    lambda: jax.jit(lambda x, at, scale: x[at].astype(jnp.bfloat16) * scale)(x, 3, 2.5),
    lambda: jax.vmap(jax.jit(lambda x: x / jax.lax.psum(x, "rows")), axis_name="rows")(x + 1),
    lambda: jax.vmap(jax.jit(lambda x: x / jax.lax.psum(x, "rows")), axis_name="rows")(np.ones((4, 2), np.float32)),
    lambda: jax.jit(lambda x: x + constant)(x),
]
plain = [call() for call in calls]
with pw.record(adopt="here") as run:
    ours = [call() for call in calls]
equal(ours, plain)
assert [one.sharding for one in ours[:4]] == [one.sharding for one in plain[:4]]
assert len(run.events.of_kind("compute")) == 6
(said,) = run.adopted.refused.values()
assert "uses the device array" in said and "from outside. Pass it as an argument" in said, said
""")


def test_tied_weights_of_a_model_stay_tied_in_calls_and_predictions(run):
    run("""
class Tied(nnx.Module):
    def __init__(self):
        self.embed = nnx.Param(jax.device_put(jnp.eye(8) / 2, NamedSharding(mesh, P(None, "model"))))
        self.head = self.embed
        self.scale = nnx.Param(jnp.ones(()))

    def __call__(self, x):
        return jnp.tanh(x @ self.embed[...]) @ self.head[...].T * self.scale[...]

@nnx.jit
def step(model, again, x):
    value, gradients = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
    nnx.update(model, jax.tree.map(lambda p, g: p - 0.5 * g, nnx.state(model), gradients))
    return value + again.scale[...]

ours, theirs = Tied(), Tied()
adopted = pw.adopt(step, ours, ours, x)
assert len(adopted._taken.structs) == 3, adopted._taken.names
for _ in range(3):
    equal(adopted(ours, ours, x), step(theirs, theirs, x))
equal(nnx.state(ours), nnx.state(theirs))
assert ours.head is ours.embed
""")


def test_what_a_node_cannot_give_back_and_blocks_inside_traces_are_refused(run):
    run("""
class Model(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones((8, 8)))

@nnx.jit
def grows(model, x):
    model.extra = nnx.Variable(x.sum())
    return x @ model.w[...]

try:
    pw.adopt(grows, Model(), x)(Model(), x)
except pw.UsageError as error:
    assert "grows gives its arguments other parts than they had, such as a new variable" in str(error), error
else:
    raise AssertionError("accepted")

@jax.jit
def traced(x):
    with pw.record(adopt="here"):
        return jax.jit(jnp.sin)(x)

try:
    traced(x)
except pw.UsageError as error:
    assert "this block is in a function that JAX traces" in str(error), error
else:
    raise AssertionError("accepted")
equal(jax.jit(jnp.sin)(x), jnp.sin(x))
""")
