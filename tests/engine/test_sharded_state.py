"""What is sharded stays sharded: a training step in its steady state moves its batch and nothing else.

Optimizers whose state mirrors parameters (Adam), is factored (Adafactor), and that reduce everything to one number
(clipping by global norm), on one place and on two islands, on devices and simulated, beside plain JAX.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding

import pathways_nb as pw
from tests.conftest import settled
from tests.engine import llama
from tests.engine.computations import same

P = pw.P
SPECS = {"a": P(None, "x"), "b": P("x", None)}
OPTIMIZERS = {
    "adam": optax.adam(1e-2),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=8),
    "clip": optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2)),
}
STEPS = 3
X = jax.ShapeDtypeStruct((8, 16), jnp.float32)


@pytest.fixture(params=["cpu", "sim"])
def controller(request: pytest.FixtureRequest) -> Iterator[pw.Controller]:
    if request.param == "cpu":
        with pw.attach("cpu", islands=2, devices_per_island=4) as made:
            yield made
    else:
        with pw.attach("sim", chip="tpu_v5p", islands=2, devices_per_island=4) as made:
            yield made


@pytest.fixture
def devices() -> Iterator[pw.Controller]:
    with pw.attach("cpu", islands=2, devices_per_island=4) as made:
        yield made


def is_real(controller: pw.Controller) -> bool:
    return controller.specification.kind == "cpu"


def parameters() -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes = {"a": (16, 32), "b": (32, 8)}
    return {name: random.normal(size=shape).astype("f4") for name, shape in shapes.items()}


def batch(number: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(number + 1)
    return random.normal(size=(8, 16)).astype("f4"), random.normal(size=(8, 8)).astype("f4")


def plain_loss(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ params["a"]) @ params["b"] - y) ** 2)


def one_place() -> Callable[..., Any]:
    return pw.jit(plain_loss, on=pw.virtual_slice(4, name="place"), in_shardings=(SPECS, None, None))


def two_islands() -> Callable[..., Any]:
    left, right = (pw.virtual_slice(4, island=i, name=name) for i, name in enumerate(("left", "right")))
    hidden = pw.jit(lambda a, x: jnp.tanh(x @ a), on=left, in_shardings=(SPECS["a"], None))
    error = pw.jit(
        lambda b, h, y: jnp.mean((h @ b - y) ** 2), on=right, in_shardings=(SPECS["b"], P(None, "x"), None)
    )
    return lambda params, x, y: error(params["b"], hidden(params["a"], x), y)


LOSSES = {"one place": one_place, "two islands": two_islands}


def updating(loss: Callable[..., Any], optimizer: Any) -> Callable[..., Any]:
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


class Moved(NamedTuple):
    """A transfer: what its label says, and its bytes."""

    name: str
    bytes: int


@dataclass
class Trained:
    """What some steps did: the values after the last one, and of each step its transfers and compilations."""

    params: Any
    state: Any
    moved: list[list[Moved]]
    compiled: list[int]


def train(step: pw.Program, params: Any, state: Any, steps: int = STEPS, of: Callable[..., Any] = batch) -> Trained:
    trained = Trained(params, state, [], [])
    for number in range(steps):
        with pw.record() as run:
            trained.params, trained.state, _ = step(trained.params, trained.state, *of(number))
        events = run.events.of_kind("transfer")
        trained.moved.append([Moved(*row) for row in zip(events["name"], map(int, events["bytes"]), strict=True)])
        trained.compiled.append(len(run.events.of_kind("compile")))
    return trained


def arguments(moved: list[Moved]) -> set[str]:
    """The arguments among what travelled."""
    return {one.name.partition(" ")[0] for one in moved} - {"left", "right"}


def per_device(tree: Any) -> int:
    """Bytes on each device of what is laid out so."""

    def size(leaf: Any) -> int:
        return math.prod(leaf.sharding.shard_shape(leaf.shape)) * np.dtype(leaf.dtype).itemsize

    return sum(map(size, jax.tree.leaves(tree)))


def layouts(tree: Any) -> list[Any]:
    return [leaf.sharding.shard_shape(leaf.shape) for leaf in jax.tree.leaves(tree)]


def in_plain_jax(devices: pw.Controller, optimizer: Any) -> tuple[Any, Any]:
    """Parameters and state after the same steps of ``jax.jit`` with the same shardings, on the same devices."""
    mesh = Mesh(np.array(devices.driver.attachment.islands[0].devices), ("x",))
    params = jax.tree.map(lambda v, spec: jax.device_put(v, NamedSharding(mesh, spec)), parameters(), SPECS)
    whole = NamedSharding(mesh, P())
    state = jax.tree.map(lambda leaf: leaf if leaf.sharding.device_set == whole.device_set else np.asarray(leaf),
                         optimizer.init(params))  # fmt: skip
    step = jax.jit(updating(plain_loss, optimizer))
    for number in range(STEPS):
        params, state, _ = step(params, state, *(jax.device_put(v, whole) for v in batch(number)))
    return params, state


def unsharded(optimizer: Any, steps: int = STEPS, of: Callable[..., Any] = batch) -> tuple[Any, Any]:
    params = parameters()
    state, step = optimizer.init(params), jax.jit(updating(plain_loss, optimizer))
    for number in range(steps):
        params, state, _ = step(params, state, *of(number))
    return params, state


# ---- the steady state


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("places", LOSSES)
def test_a_step_moves_its_batch_and_nothing_else(controller: pw.Controller, places: str, name: str) -> None:
    optimizer = OPTIMIZERS[name]
    step = pw.program(updating(LOSSES[places](), optimizer), name="step")
    trained = train(step, parameters(), optimizer.init(parameters()))
    for moved in trained.moved[1:]:
        assert arguments(moved) == {"x", "y"}, moved
    assert trained.compiled[1:] == [0] * (STEPS - 1), "one layout from the first step on"
    if is_real(controller):
        expected = unsharded(optimizer)
        same((trained.params, trained.state), expected, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_memory_on_each_device_is_that_of_plain_jax(controller: pw.Controller, name: str) -> None:
    optimizer = OPTIMIZERS[name]
    step = pw.program(updating(one_place(), optimizer), name="step")
    trained = train(step, parameters(), optimizer.init(parameters()))
    kept = trained.params, trained.state
    with pw.attach("cpu", islands=2, devices_per_island=4) as devices:
        plain = in_plain_jax(devices, optimizer)
        assert layouts(kept) == layouts(plain)
        size = per_device(plain)
    assert per_device(kept) == size
    gc.collect()
    settled(controller)
    assert controller.machine.memory.islands[0].totals == [size], "the store's ledger"
    if is_real(controller):
        on_first = [leaf.array().addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(kept)]
        assert sum(on_first) == size


def test_the_first_step_already_brings_state_from_the_host_as_the_parameter_that_it_mirrors(
    controller: pw.Controller,
) -> None:
    optimizer = OPTIMIZERS["adam"]
    step = pw.program(updating(one_place(), optimizer), name="step")
    call = step.signature((parameters(), optimizer.init(parameters()), *batch()), {})
    lowered = controller.lowered(controller.traced(step, call), call)
    held = {controller_name(lowered, at): to.spec for at, to in zip(lowered.brought, lowered.targets, strict=True)}
    assert held[2] == P(), "the count of steps"
    assert [held[at] for at in (3, 5)] == [P(None, "x")] * 2, "mu and nu of a"
    assert [held[at] for at in (4, 6)] == [P("x")] * 2, "mu and nu of b"
    (peak,) = step.peaks(*(parameters(), optimizer.init(parameters()), *batch()))
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves((parameters(), optimizer.init(parameters()))))
    batch_bytes = sum(leaf.nbytes for leaf in batch())
    assert peak.inputs == (whole - 4) // 4 + 4 + batch_bytes


def controller_name(lowered: Any, at: int) -> int:
    return at
