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
from pathways_nb.session.calls import submit
from tests.conftest import settled
from tests.jax.programs import llama
from tests.support.closeness import close
from tests.support.computations import first_shard

P = pw.P
SPECS = {"a": P(None, "x"), "b": P("x", None)}
OPTIMIZERS = {
    "adam": optax.adam(1e-2),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=8),
    "clip": optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2)),
}
STEPS = 3
ADAM = 1e-4
"""The tolerance of parameters after its steps, which divide by the roots of small squares."""


@pytest.fixture(params=["cpu", "sim"])
def controller(request: pytest.FixtureRequest) -> Iterator[pw.Controller]:
    if request.param == "cpu":
        with pw.attach("cpu", islands=2, devices_per_island=4) as made:
            pw.reset()
            yield made
    else:
        with pw.attach("sim", chip="tpu_v5p", islands=2, devices_per_island=4) as made:
            yield made


@pytest.fixture
def devices() -> Iterator[pw.Controller]:
    with pw.attach("cpu", islands=2, devices_per_island=4) as made:
        pw.reset()
        yield made


def is_real(controller: pw.Controller) -> bool:
    return controller.attach_options.kind == "cpu"


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
    return pw.jit(plain_loss, on=pw.virtual_slice(4, island=0, name="place"), in_shardings=(SPECS, None, None))


def two_islands() -> Callable[..., Any]:
    left, right = (pw.virtual_slice(4, island=i, name=name) for i, name in enumerate(("left", "right")))
    hidden = pw.jit(lambda a, x: jnp.tanh(x @ a), on=left, in_shardings=(SPECS["a"], None))
    error = pw.jit(lambda b, h, y: jnp.mean((h @ b - y) ** 2), on=right, in_shardings=(SPECS["b"], P(None, "x"), None))
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
        close((trained.params, trained.state), expected, ADAM)


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


def test_the_first_step_already_brings_state_as_the_parameter_that_it_mirrors(controller: pw.Controller) -> None:
    optimizer = OPTIMIZERS["adam"]
    step, params = pw.program(updating(one_place(), optimizer), name="step"), parameters()
    given = params, optimizer.init(params), *batch()
    call = step.signature(given, {})
    lowered = submit.compiled_plan(controller, submit.traced(controller, step, call), call)
    laid = {argument: to.spec for argument, to in zip(lowered.brought, lowered.targets, strict=True)}
    assert laid[2] == P(), "the count of steps"
    assert laid[3] == laid[5] == P(None, "x"), "mu and nu of a"
    assert laid[4] == laid[6] == P("x"), "mu and nu of b"
    (peak,) = step.peaks(*given)
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(given[:2])) - 4
    assert peak.inputs == whole // 4 + 4 + sum(leaf.nbytes for leaf in given[2:])


@pytest.mark.parametrize("fuse", [False, True])
def test_donated_state_is_updated_where_it_lies(devices: pw.Controller, fuse: bool) -> None:
    optimizer = OPTIMIZERS["adam"]
    step = pw.program(updating(one_place(), optimizer), donate_argnums=(0, 1), fuse=fuse, name="step")
    first = train(step, parameters(), optimizer.init(parameters()), 1)
    where = set(map(first_shard, jax.tree.leaves((first.params, first.state))))
    then = train(step, first.params, first.state, 2, lambda number: batch(number + 1))
    assert [arguments(moved) for moved in then.moved] == [{"x", "y"}] * 2
    close((then.params, then.state), unsharded(optimizer), ADAM)
    kept = set(map(first_shard, jax.tree.leaves((then.params, then.state))))
    assert len(where & kept) >= 6, "parameters, mu and nu of a and b"


def test_accumulated_gradients_lie_as_their_parameters(controller: pw.Controller) -> None:
    optimizer = optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2)
    step = pw.program(updating(one_place(), optimizer), name="step")
    trained = train(step, parameters(), optimizer.init(parameters()), 4)
    assert [arguments(moved) for moved in trained.moved[1:]] == [{"x", "y"}] * 3
    assert sum(trained.compiled[1:]) == 0
    assert layouts(trained.state.acc_grads) == [(16, 8), (8, 8)]
    if is_real(controller):
        close(trained.params, unsharded(optimizer, 4)[0], ADAM)


def test_microbatches_in_one_program_keep_the_state_sharded(devices: pw.Controller) -> None:
    optimizer, loss = OPTIMIZERS["clip"], one_place()

    @pw.program
    def step(params: Any, state: Any, xs: Any, ys: Any) -> Any:
        total = jax.tree.map(jnp.zeros_like, params)
        for x, y in zip(xs, ys, strict=True):
            total = jax.tree.map(jnp.add, total, jax.grad(loss)(params, x, y))
        updates, state = optimizer.update(total, state, params)
        return optax.apply_updates(params, updates), state, jnp.sum(total["a"])

    def several(number: int) -> Any:
        return tuple(zip(batch(number), batch(number + 7), strict=True))

    trained = train(step, parameters(), optimizer.init(parameters()), STEPS, several)
    assert [arguments(moved) for moved in trained.moved[1:]] == [{"xs", "ys"}] * 2
    assert layouts(trained.params) == [(16, 8), (8, 8)]


@pytest.mark.parametrize("places", LOSSES)
def test_an_update_that_is_a_program_of_its_own_runs_where_the_state_lies(
    controller: pw.Controller, places: str
) -> None:
    optimizer = OPTIMIZERS["adam"]
    gradients = pw.program(jax.grad(LOSSES[places]()), name="gradients")

    @pw.program
    def update(params: Any, state: Any, given: Any) -> Any:
        updates, state = optimizer.update(given, state, params)
        return optax.apply_updates(params, updates), state

    params, state = parameters(), optimizer.init(parameters())
    for number in range(STEPS):
        with pw.record() as run:
            params, state = update(params, state, gradients(params, *batch(number)))
        moved = {name.partition(" ")[0] for name in run.events.of_kind("transfer")["name"]}
    assert moved - {"left", "right"} == {"x", "y"}
    assert layouts(params) == [(16, 8), (8, 8)]
    if is_real(controller):
        close((params, state), unsharded(optimizer), ADAM)


# ---- how arguments lie


def ordinary(place: pw.VirtualSlice) -> pw.Program:
    """``other`` meets nothing of the place but a number."""
    total = pw.jit(jnp.sum, on=place, in_shardings=P())
    return pw.program(lambda v, other: other * total(v), name="ordinary")


@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P()])
def test_what_was_put_keeps_lying_as_it_was_put(controller: pw.Controller, spec: Any) -> None:
    place = pw.virtual_slice(4)
    value, number = np.ones((8, 4), np.float32), np.ones(4, np.float32)
    other = pw.put(value, on=place, shardings=spec)
    with pw.record() as run:
        out = ordinary(place)(number, other)
    assert [name.partition(" ")[0] for name in run.events.of_kind("transfer")["name"]] == ["v"]
    assert out.sharding.shard_shape(out.shape) == other.sharding.shard_shape(other.shape)


def test_state_from_another_place_is_brought_once_and_stays(controller: pw.Controller) -> None:
    """On other devices, with axes of other names and another shape of mesh; each program is compiled once more at most."""
    optimizer = OPTIMIZERS["adam"]
    first = train(pw.program(updating(one_place(), optimizer)), parameters(), optimizer.init(parameters()), 1)
    other = pw.virtual_slice((2, 2), axes=("data", "model"), island=1)
    specs = {"a": P(None, "model"), "b": P("model", None)}
    loss = pw.jit(plain_loss, on=other, in_shardings=(specs, P("data"), P("data")))
    then = train(pw.program(updating(loss, optimizer)), first.params, first.state, 3, lambda n: batch(n + 1))
    assert arguments(then.moved[0]) > {"x", "y"}
    assert [arguments(moved) for moved in then.moved[1:]] == [{"x", "y"}] * 2
    assert layouts(then.state[0].mu) == [(16, 16), (16, 8)]
    assert sum(then.compiled[1:]) == 0
    if is_real(controller):
        close((then.params, then.state), unsharded(optimizer, 4), ADAM)


def test_the_same_devices_under_other_axes_are_another_place(devices: pw.Controller) -> None:
    line, square = pw.virtual_slice(4, island=0), pw.virtual_slice((2, 2), axes=("data", "model"), island=0)
    value = pw.put(np.arange(32, dtype=np.float32).reshape(8, 4), on=line, shardings=P("x"))
    out = ordinary(square)(np.ones(4, np.float32), value)
    assert out.sharding.mesh.axis_names == ("data", "model")
    close(out, np.arange(32, dtype=np.float32).reshape(8, 4) * 4)


def test_a_program_is_compiled_once_for_each_layout(devices: pw.Controller) -> None:
    place = pw.virtual_slice(4)
    program, v, value = ordinary(place), np.ones(4, np.float32), np.ones((8, 4), np.float32)
    compiled = []
    laid = {spec: pw.put(value, on=place, shardings=spec) for spec in (P("x"), P(), P(None, "x"))}
    for spec in (P("x"), P(), P("x"), None, P(None, "x"), P(), None):
        with pw.record() as run:
            program(v, value if spec is None else laid[spec])
        compiled.append(len(run.events.of_kind("lower")) > 0)
    assert compiled == [True, True, False, False, True, False, False]
    assert len(run.programs) == 1


def test_replicated_state_after_a_sharded_one_is_compiled_for_once(devices: pw.Controller) -> None:
    optimizer = OPTIMIZERS["adam"]
    place = pw.virtual_slice(4)
    loss = pw.jit(plain_loss, on=place, in_shardings=(SPECS, None, None))
    step = pw.program(updating(loss, optimizer), name="step")
    trained = train(step, parameters(), optimizer.init(parameters()))
    whole = pw.put(pw.get(trained.state), on=place)
    then = train(step, trained.params, whole)
    assert len([count for count in then.compiled if count]) <= 1
    assert [arguments(moved) for moved in then.moved] == [{"x", "y"}] * STEPS


def test_a_dimension_that_the_devices_do_not_divide_is_not_split(devices: pw.Controller) -> None:
    place = pw.virtual_slice(4)
    double = pw.jit(lambda v: v * 2, on=place, in_shardings=P("x"), out_shardings=P("x"))
    program = pw.program(lambda v, other: double(v).reshape(2, 4) + other)
    v, other = np.arange(8, dtype=np.float32), np.ones((2, 4), np.float32)
    close(program(v, other), (v * 2).reshape(2, 4) + other)
    close(program(v, program(v, other)), 2 * (v * 2).reshape(2, 4) + other)


def test_a_run_shows_a_program_once_whatever_its_layouts(controller: pw.Controller) -> None:
    optimizer = OPTIMIZERS["adafactor"]
    place = pw.virtual_slice(4)
    loss = pw.jit(plain_loss, on=place, in_shardings=(SPECS, None, None))
    step = pw.program(updating(loss, optimizer), name="step")
    params, state = parameters(), optimizer.init(parameters())
    with pw.record() as run:
        step(params, state, *batch())
        step(params, pw.put(state, on=place), *batch())
    assert [(program.graph.name, program.runs) for program in run.programs] == [("step", 2)]


# ---- trees of other kinds


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    kernel: Any
    bias: Any


@jax.tree_util.register_dataclass
@dataclass
class Model:
    layers: dict[str, Layer]
    scale: Any


def test_state_of_nested_dataclasses_lies_as_they_do(devices: pw.Controller) -> None:
    random = np.random.default_rng(0)

    def layer(rows: int, columns: int) -> Layer:
        return Layer(random.normal(size=(rows, columns)).astype("f4"), np.zeros(columns, np.float32))

    model = Model({"in": layer(16, 32), "out": layer(32, 8)}, np.float32(1.0))
    specs = Model({"in": Layer(P(None, "x"), P("x")), "out": Layer(P("x"), P())}, P())

    def predict(model: Model, x: Any, y: Any) -> Any:
        for one in model.layers.values():
            x = jnp.tanh(x @ one.kernel + one.bias)
        return jnp.mean((x * model.scale - y) ** 2)

    optimizer = optax.adamw(1e-2)
    loss = pw.jit(predict, on=pw.virtual_slice(4), in_shardings=(specs, None, None))
    trained = train(pw.program(updating(loss, optimizer)), model, optimizer.init(model))
    assert [arguments(moved) for moved in trained.moved[1:]] == [{"x", "y"}] * 2
    mu, nu = trained.state[0].mu, trained.state[0].nu
    assert layouts(mu) == layouts(nu) == layouts(trained.params) == [(16, 8), (8,), (8, 8), (8,), ()]
    params, state = model, optimizer.init(model)
    for number in range(STEPS):
        params, state, _ = jax.jit(updating(predict, optimizer))(params, state, *batch(number))
    close(trained.params, params, ADAM)


# ---- a model of real shape


def blocks_step(size: llama.Size, place: pw.VirtualSlice) -> pw.Program:
    specs = llama.specs(size)["blocks"]
    loss = pw.jit(
        lambda blocks, x, y: llama.squared_loss(size, blocks, x, y),
        on=place, in_shardings=(specs, P("data"), P("data")),
    )  # fmt: skip
    return pw.program(updating(loss, optax.adam(1e-3)), name="step")


def test_the_blocks_of_a_small_llama_train_as_in_plain_jax(devices: pw.Controller) -> None:
    size, optimizer = llama.cut(llama.TINY, 1), optax.adam(1e-3)
    blocks, random = llama.weights(size)["blocks"], np.random.default_rng(1)
    x, y = random.normal(size=(2, 4, 8, size.width)).astype("f4")
    step = blocks_step(size, pw.virtual_slice((2, 2), axes=("data", "model")))
    trained = train(step, blocks, optimizer.init(blocks), STEPS, lambda number: (x, y))
    assert [arguments(moved) for moved in trained.moved[1:]] == [{"x", "y"}] * 2
    assert per_device(trained.state) == 2 * per_device(trained.params) + 4
    plain = jax.jit(updating(lambda blocks, x, y: llama.squared_loss(size, blocks, x, y), optimizer))
    params, state = blocks, optimizer.init(blocks)
    for _ in range(STEPS):
        params, state, _ = plain(params, state, x, y)
    close(trained.params, params, ADAM)


# ---- abstract arguments


def test_an_abstract_argument_lies_where_a_simulated_program_wants_it() -> None:
    size, optimizer = llama.cut(llama.LLAMA_8B, 2), optax.adam(1e-4)
    blocks = llama.abstract(size)["blocks"]
    state, x = jax.eval_shape(optimizer.init, blocks), jax.ShapeDtypeStruct((16, 2048, size.width), size.dtype)
    with pw.attach("sim", chip="tpu_v5p", islands=1, devices_per_island=128) as controller:
        step = blocks_step(size, pw.virtual_slice((16, 8), axes=("data", "model")))
        spans = []
        for expected in (57, 2, 2):
            with pw.record() as run:
                blocks, state, _ = step(blocks, state, x, x)
            del _
            assert not len(run.events.of_kind("transfer"))
            assert (run.summary().taken, run.summary().transfers) == (expected, 0)
            spans.append(run.summary().makespan)
        assert spans[0] == pytest.approx(spans[1]) == pytest.approx(spans[2])
        assert "taken as already in place: 2 abstract arguments, 537 MB" in str(run.summary())
        assert per_device(state) == 2 * per_device(blocks) + 4
        gc.collect()
        controller.wait_all()
        assert controller.machine.memory.islands[0].totals == [per_device((blocks, state))]


def test_values_travel_to_simulated_devices_and_so_does_what_was_put_elsewhere() -> None:
    with pw.attach("sim", chip="tpu_v5p", islands=2, devices_per_island=4):
        here, there = pw.virtual_slice(4, island=0), pw.virtual_slice(4, island=1)
        program, v = ordinary(here), jax.ShapeDtypeStruct((4,), jnp.float32)
        other = jax.ShapeDtypeStruct((8, 4), jnp.float32)

        def routes(value: Any) -> list[str]:
            with pw.record() as run:
                program(v, value)
            return list(run.events.of_kind("transfer")["route"])

        assert routes(other) == []
        assert routes(np.ones((8, 4), np.float32)) == ["host"]
        assert routes(pw.put(other, on=there)) == ["DCN"]


def test_what_was_taken_as_placed_is_kept_with_a_run(tmp_path: Any) -> None:
    with pw.attach("sim", chip="tpu_v5p", islands=1, devices_per_island=4):
        program, v = ordinary(pw.virtual_slice(4)), jax.ShapeDtypeStruct((4,), jnp.float32)
        with pw.record() as outer:
            program(v, jax.ShapeDtypeStruct((8, 4), jnp.float32))
            with pw.record():
                program(v, np.ones((8, 4), np.float32))
        assert (outer.summary().taken, outer.summary().taken_bytes) == (3, 160)
        outer.save(tmp_path / "a.run")
    assert pw.load(tmp_path / "a.run").summary() == outer.summary()


# ---- small values on several islands


def test_a_counter_is_counted_where_it_is_needed(controller: pw.Controller) -> None:
    """Two islands read it; each keeps its own, and what one of them loses, the other has."""
    left, right = pw.virtual_slice(4, island=0), pw.virtual_slice(4, island=1)
    add = {place: pw.jit(lambda v, n: v + n, on=place, in_shardings=(P("x"), None)) for place in (left, right)}

    @pw.program
    def step(v: Any, w: Any, count: Any) -> Any:
        return add[left](v, 0) * (count + 1), add[right](w, 0) * (count + 1), count + 1

    v = w = np.ones(4, np.float32)
    count: Any = np.int32(0)
    moved = []
    for _ in range(3):
        with pw.record() as run:
            v, w, count = step(v, w, count)
        moved.append(len(run.events.of_kind("transfer")))
    assert moved == [4, 0, 0]
    if is_real(controller):
        close((v, w, count), (np.full(4, 6.0), np.full(4, 6.0), 3))
    controller.remove(island=1)
    other = pw.virtual_slice(2, island=0)
    again = pw.program(lambda v, n: pw.jit(lambda v: v, on=other)(v) * n)(np.ones(2, np.float32), count)
    again.wait()


def test_coefficients_that_are_returned_as_they_came_stay_on_both_islands(controller: pw.Controller) -> None:
    left, right = pw.virtual_slice(4, island=0), pw.virtual_slice(4, island=1)
    use = {place: pw.jit(lambda c: c.sum(), on=place) for place in (left, right)}
    program = pw.program(lambda c: (use[left](c) + 1, use[right](c) + 1, c))
    coefficients: Any = np.arange(3, dtype=np.float32)
    moved = []
    for _ in range(3):
        with pw.record() as run:
            *sums, coefficients = program(coefficients)
        moved.append(len(run.events.of_kind("transfer")))
    assert moved == [2, 0, 0]
    if is_real(controller):
        close((*sums, coefficients), (4.0, 4.0, np.arange(3)))
