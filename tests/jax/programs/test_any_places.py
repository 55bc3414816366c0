"""Programs over places of unlike sizes and shapes: each case by itself, layouts in general, and random programs."""

from __future__ import annotations

import itertools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, NamedSharding

import pathways_nb as pw
from pathways_nb.runtime.lowering.transfers import translated
from tests.conftest import ROOT
from tests.jax.any_places import bodies
from tests.jax.any_places.writing import Writer
from tests.support.closeness import close

x = np.random.default_rng(0).normal(size=(bodies.N, bodies.N)).astype(np.float32)
SHAPES = {"4": (4, ("x",)), "2x2": ((2, 2), ("a", "b")), "4x1": ((4, 1), ("c", "d"))}


@pytest.fixture
def four(controller: pw.Controller) -> pw.VirtualSlice:
    return pw.virtual_slice(4, island=0, name="four")


@pytest.fixture
def two(controller: pw.Controller) -> pw.VirtualSlice:
    return pw.virtual_slice(2, island=1, name="two")


def chain(*stages):
    return lambda v: jnp.mean(stages[1](stages[0](v)) ** 2)


def on(place, fn):
    return pw.jit(fn, on=place, in_shardings=pw.P(place.axes[0]))


@pytest.mark.parametrize("fn", [bodies.softmax, bodies.log_softmax, bodies.logsumexp, bodies.solve, bodies.scan])
def test_the_gradient_goes_over_places_of_unlike_sizes(four, two, fn) -> None:
    gradient = pw.program(jax.grad(chain(on(four, fn), on(two, fn))))(x)
    close(gradient, np.asarray(jax.grad(chain(fn, fn))(x)))


def test_every_transformation_goes_over_places_of_unlike_sizes(four, two) -> None:
    def all_of(f):
        return lambda v: (
            jax.jvp(f, (v,), (v,)),
            jax.vmap(f)(jnp.stack([v, v * 2])),
            jax.jvp(jax.grad(f), (v,), (v * v,))[1],
            jax.grad(lambda v: (jax.grad(f)(v) ** 2).sum())(v),
            jax.grad(jax.checkpoint(f))(v),
        )

    placed, plain = (all_of(chain(*stages)) for stages in ((on(four, both), on(two, both)), (both, both)))
    close(pw.program(placed)(x), jax.tree.map(np.asarray, plain(x)))


def both(v):
    return bodies.scan(bodies.softmax(v))


@pytest.mark.parametrize("second", SHAPES)
@pytest.mark.parametrize("first", SHAPES)
def test_a_layout_means_the_same_on_a_place_of_another_shape(controller, first, second) -> None:
    (a_shape, a_axes), (c_shape, c_axes) = SHAPES[first], SHAPES[second]
    one = pw.virtual_slice(a_shape, axes=a_axes, island=0, name="one")
    other = pw.virtual_slice(c_shape, axes=c_axes, island=1, name="other")
    a = pw.jit(lambda v: v * 2, on=one, out_shardings=pw.P(*one.axes))
    c = pw.jit(lambda v: v * 3, on=other, out_shardings=pw.P(*reversed(other.axes)))
    close(pw.program(lambda v: (a(v) + c(v), c(a(v)), a(c(v))))(x), (5 * x, 6 * x, 6 * x))


def test_axes_of_one_place_are_not_those_of_another_that_has_as_many_devices(controller) -> None:
    """Equal sizes and names, but in another order: a sum over "a" is over other devices, and 3 of 12 rows are not 6."""
    one = pw.virtual_slice((2, 2), axes=("a", "b"), island=0, name="one")
    other = pw.virtual_slice((2, 2), axes=("b", "a"), island=1, name="other")
    rows = pw.P(("a", "b"))
    ranked = [
        pw.shard_map(lambda v: v * (1 + jax.lax.axis_index(("a", "b"))), on=place, in_specs=rows, out_specs=rows)
        for place in (one, other)
    ]
    factors = np.repeat(np.arange(1, 5), 3)[:, None].astype(np.float32)
    gradient = jax.grad(lambda v: bodies.softmax(ranked[1](bodies.softmax(ranked[0](v))))[0].sum() + ranked[1](v).sum())
    plain = jax.grad(lambda v: bodies.softmax(bodies.softmax(v * factors) * factors)[0].sum() + (v * factors).sum())
    close(pw.program(gradient)(x), np.asarray(plain(x)))


def test_bare_specs_are_of_the_computations_own_place_in_rules_of_the_user_too(four, two) -> None:
    def stage(place):
        def body(v):
            return bodies.steered(lambda t: jax.lax.with_sharding_constraint(t, pw.P(None, "x")))(bodies.straight(v))

        return pw.jit(body, on=place)

    def plain(v):
        return bodies.steered(lambda t: t)(bodies.straight(v))

    gradient = pw.program(jax.grad(chain(stage(four), stage(two))))(x)
    close(gradient, np.asarray(jax.grad(chain(plain, plain))(x)))


def test_what_the_backward_pass_needs_is_kept_once(four, two) -> None:
    def stage(w, v):
        return jnp.tanh(v @ w)

    first, second = pw.jit(stage, on=four), pw.jit(stage, on=two)
    graph = pw.program(jax.grad(lambda w, v: second(w, first(w, v)).sum())).graph(x, x)
    forward = [node for node in graph.nodes if node.name == "stage"]
    # The output, and what the derivative of tanh is made of; weights and inputs are there anyway.
    assert [len(node.outputs) for node in forward] == [2, 2]


def test_per_shard_code_and_a_program_with_its_own_gradient_step(four, two) -> None:
    """Gradients that are used by computations of other places again."""
    mean = pw.shard_map(lambda v: bodies.centred(v, "x"), on=four, in_specs=pw.P("x"), out_specs=pw.P("x"))
    soft = on(two, bodies.softmax)

    def tuned(mean, soft):
        def loss(v, w):
            return jnp.mean(soft(mean(v) * w) ** 2)

        def outer(v, w):
            gv, gw = jax.grad(loss, (0, 1))(v, w)
            return loss(v - gv * gw, w - 0.1 * gw)

        return jax.grad(outer, (0, 1))

    plain = tuned(lambda v: v - v.mean(), bodies.softmax)
    close(pw.program(tuned(mean, soft))(x, x), jax.tree.map(np.asarray, plain(x, x)))


def meshes(count: int) -> list[AbstractMesh]:
    shapes = [s for n in (1, 2, 3) for s in itertools.product(range(1, count + 1), repeat=n) if np.prod(s) == count]
    return [AbstractMesh(s, tuple("abc"[: len(s)]), axis_types=(AxisType.Auto,) * len(s)) for s in shapes]


def specs(mesh: AbstractMesh) -> list[pw.P]:
    """Every layout of a matrix."""
    names = mesh.axis_names
    ordered = [part for n in range(len(names) + 1) for part in itertools.permutations(names, n)]
    return [pw.P(part[:cut] or None, part[cut:] or None) for part in ordered for cut in range(len(part) + 1)]


@given(st.sampled_from([2, 4, 6, 8]).flatmap(lambda n: st.tuples(*[st.sampled_from(meshes(n))] * 2)), st.data())
@settings(max_examples=150)
def test_a_layout_is_translated_where_the_axes_can_say_it(pair, data) -> None:
    ours, theirs = pair
    given = NamedSharding(theirs, data.draw(st.sampled_from(specs(theirs))))
    found = translated(given, ours)
    if found is not None:
        assert found.mesh == ours
        assert found.is_equivalent_to(given, 2)
    else:
        assert not any(NamedSharding(ours, spec).is_equivalent_to(given, 2) for spec in specs(ours))


def test_layouts_of_other_counts_and_kinds_are_not_translated() -> None:
    two, four = meshes(2)[0], meshes(4)[0]
    assert translated(NamedSharding(two, pw.P("a")), four) is None
    assert translated(jax.sharding.SingleDeviceSharding(jax.devices()[0]), four) is None


@pytest.mark.parametrize(
    "options",
    [pytest.param("--count 80", marks=pytest.mark.slow), "--count 15 --seed 1000 --simulate", "--donate --count 25"],
)
def test_random_programs_have_the_values_of_plain_jax(options) -> None:
    """Programs of few computations, that others use as well, so that much is compiled once for all."""
    command = [sys.executable, "-m", "tests.jax.any_places", "--shelf", "0", "--seconds", "500", *options.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" 0 failed\n")


def test_what_was_simulated_first_runs_on_devices(controller) -> None:
    """JAX keeps what it traced of a function that the user jits: with it the meshes of simulated devices."""
    place = pw.virtual_slice(4, island=0)
    mean = pw.shard_map(lambda v: bodies.centred(v, "x"), on=place, in_specs=pw.P("x"), out_specs=pw.P("x"))
    kept = [jax.jit(lambda v: mean(v) * 2), jax.checkpoint(lambda v: mean(v) * 2)]
    programs = [pw.program(fn) for fn in kept]
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=4):
        for program in programs:
            program(x).wait()
    for program in programs:
        close(program(x), 2 * (x - x.mean()))


def test_one_seed_writes_one_program() -> None:
    assert Writer(3).text() == Writer(3).text() != Writer(4).text()
