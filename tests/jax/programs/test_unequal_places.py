"""Values between places with other numbers of devices: sharded, each device gets what it lacks, and nothing waits."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding

import pathways_nb as pw
from pathways_nb.runtime.lowering.transfers import analogous, send
from tests.conftest import ROOT
from tests.support.closeness import close

SHAPES = [(1,), (2,), (4,), (2, 2), (3,)]
x = np.random.default_rng(0).normal(size=(12, 12)).astype(np.float32)


def place(shape: tuple[int, ...], island: int, name: str) -> pw.VirtualSlice:
    return pw.virtual_slice(shape, axes=("x", "y")[: len(shape)], island=island, name=name)


def specs(shape: tuple[int, ...]) -> list[pw.P]:
    both = [pw.P("x", "y"), pw.P(("x", "y"))] if len(shape) > 1 else []
    return [pw.P(), pw.P("x"), pw.P(None, "x"), *both]


@pytest.mark.parametrize(("source", "target"), list(itertools.product(SHAPES, SHAPES)))
def test_values_are_those_of_plain_jax_in_every_layout(controller, source, target) -> None:
    one, two = place(source, 0, "one"), place(target, 1, "two")
    made = [pw.jit(lambda v: v * 2, on=one, out_shardings=spec) for spec in specs(source)]
    read = [pw.jit(lambda v: v + 1, on=two, in_shardings=spec, out_shardings=spec) for spec in specs(target)]
    found = pw.program(lambda v: [g(f(v)) for f in made for g in read])(x)
    close(found, [x * 2 + 1] * len(found))
    wanted = [spec for _ in made for spec in specs(target)]
    for value, spec in zip(found, wanted, strict=True):
        assert value.array().sharding.is_equivalent_to(NamedSharding(value.array().sharding.mesh, spec), 2)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each piece that was copied to another device."""
    found: list[int] = []
    put = jax.device_put

    def noting(arrays: Any, where: Any, **options: Any) -> Any:
        if isinstance(arrays, list):
            found.extend(a.nbytes for a, to in zip(arrays, where, strict=True) if a.sharding != to)
        return put(arrays, where, **options)

    monkeypatch.setattr(jax, "device_put", noting)
    return found


def moves(run: pw.Run) -> list[int]:
    events = run.events.of_kind("transfer")
    return events.select(~events.is_("route", "host"))["bytes"].tolist()


@pytest.mark.parametrize(("source", "target"), [(4, 2), (2, 4), (4, 1), (1, 4), (3, 2), (4, 3)])
def test_what_is_sharded_crosses_once(controller, copied, source, target) -> None:
    one, two = place((source,), 0, "one"), place((target,), 1, "two")
    made = pw.jit(lambda v: v * 2, on=one, out_shardings=pw.P("x"))
    read = pw.jit(lambda v: v + 1, on=two, in_shardings=pw.P("x"))
    with pw.record() as run:
        close(pw.program(lambda v: read(made(v)))(x), x * 2 + 1)
    assert moves(run) == [x.nbytes]
    assert sum(copied) == x.nbytes
    assert len(copied) == source + target - int(np.gcd(source, target))


def test_each_replica_gets_its_copy_and_replicas_share_the_sending(controller, copied) -> None:
    one, two = place((2,), 0, "one"), place((4,), 1, "two")
    made, read = (pw.jit(lambda v: v * 2, on=at, out_shardings=pw.P()) for at in (one, two))
    with pw.record() as run:
        close(pw.program(lambda v: read(made(v)))(x), x * 4)
    assert moves(run) == [4 * x.nbytes]
    assert copied == [x.nbytes] * 4


def test_what_a_device_holds_is_not_sent(controller, copied) -> None:
    """Two places of one island share devices 0 and 1, which hold half of what they want, or less."""
    four, two = pw.virtual_slice(4, island=0, name="four"), pw.virtual_slice(2, island=0, name="two")
    made = pw.jit(lambda v: v * 2, on=four, out_shardings=pw.P("x"))
    read = pw.jit(lambda v: v + 1, on=two, in_shardings=pw.P("x"))
    with pw.record() as run:
        close(pw.program(lambda v: read(made(v)))(x), x * 2 + 1)
    assert moves(run) == [sum(copied)] == [x.nbytes * 3 // 4]


def test_an_argument_from_another_place_is_brought_in_pieces(controller, copied) -> None:
    one, two = place((4,), 0, "one"), place((2,), 1, "two")
    read = pw.jit(lambda v: v + 1, on=two, in_shardings=pw.P(None, "x"))
    value = pw.put(x, on=one, shardings=pw.P("x"))
    with pw.record() as run:
        close(read(value), x + 1)
    assert moves(run) == [sum(copied)] == [x.nbytes]


def test_where_nothing_is_declared_the_layout_stays_alike(controller, copied) -> None:
    """Ordinary operations declare none."""
    one, two = place((4,), 0, "one"), place((2,), 1, "two")
    first, second = (
        pw.jit(lambda v: v * 2, on=at, in_shardings=pw.P("x"), out_shardings=pw.P("x")) for at in (one, two)
    )
    f = pw.program(lambda v: second(v) * first(v))
    with pw.record() as run:
        found = f(x)
        close(found, 4 * x * x)
    assert moves(run) == [sum(copied)] == [x.nbytes]
    assert found.sharding.spec == pw.P("x")


def test_the_gradient_goes_over_in_shards(controller, copied) -> None:
    one, two = place((4,), 0, "one"), place((2,), 1, "two")

    def loss(first, second):
        return lambda w, u, v: jnp.mean(second(u, first(w, v)) ** 2)

    def layer(w, v):
        return jnp.tanh(v @ w)

    rows = {"in_shardings": (None, pw.P("x")), "out_shardings": pw.P("x")}
    placed = loss(pw.jit(layer, on=one, **rows), pw.jit(layer, on=two, **rows))
    found = pw.get(pw.program(jax.grad(placed, (0, 1, 2)))(x, x, x))
    close(found, jax.tree.map(np.asarray, jax.grad(loss(layer, layer), (0, 1, 2))(x, x, x)))
    assert max(copied) == x.nbytes // 4


def test_keys_scalars_and_empty_arrays_move_too(controller) -> None:
    one, two = place((4,), 0, "one"), place((2,), 1, "two")
    split = pw.jit(lambda s: jax.random.split(jax.random.key(s), 8), on=one, out_shardings=pw.P("x"))
    draw = pw.jit(lambda k: jax.vmap(jax.random.normal)(k), on=two, in_shardings=pw.P("x"))
    single, empty = (pw.jit(lambda v: v * 2, on=one, out_shardings=spec) for spec in (pw.P(), pw.P("x")))
    read = pw.jit(lambda v: v + 1, on=two)
    found = pw.program(lambda s, e: (draw(split(s)), read(single(s)), read(empty(e))))(3, np.zeros((0, 3), "f4"))
    numbers, scalar, nothing = pw.get(found)
    close(numbers, jax.vmap(jax.random.normal)(jax.random.split(jax.random.key(3), 8)))
    assert scalar == 7
    assert nothing.shape == (0, 3)


def test_what_a_node_takes_over_is_not_what_another_place_reads(controller) -> None:
    """A device that holds its whole shard already has a copy of its own."""
    four, one = pw.virtual_slice(4, island=0, name="four"), pw.virtual_slice(1, island=0, name="one")
    value = pw.jit(lambda v: v * 2, on=four, out_shardings=pw.P())
    read = pw.jit(lambda v: v + 1, on=one)
    take = pw.jit(lambda v: v * 3, on=four, donate_argnums=0, in_shardings=pw.P(), out_shardings=pw.P())

    def f(v):
        made = value(v)
        first = read(made)
        return first, take(made), read(made)

    close(pw.program(f)(x), (x * 2 + 1, x * 6, x * 2 + 1))


def test_nothing_waits_for_what_is_sent(controller) -> None:
    """Neither for the array that is cut nor for the pieces that are joined; the first call compiles both."""
    given, target = (
        pw.put(np.zeros((768, 768), np.float32), on=place((count,), island, "a place"), shardings=spec).array()
        for island, (count, spec) in enumerate([(4, pw.P("x")), (2, pw.P(None, "x"))])
    )
    long = jax.jit(lambda v: jax.lax.fori_loop(0, 150, lambda _, m: jnp.tanh(m @ m), v), out_shardings=given.sharding)
    for _ in range(2):
        source = long(given)
        sent = send(source, target.sharding)
    assert not source.is_ready()
    np.testing.assert_array_equal(np.asarray(sent), np.asarray(given))


AXES = (AxisType.Auto,)


@pytest.mark.parametrize(
    ("given", "axes", "found"),
    [
        (pw.P("x"), {"x": 2}, pw.P("x")),
        (pw.P(None, "x"), {"y": 2}, pw.P(None, "y")),
        (pw.P("x"), {"a": 2, "b": 3}, pw.P(("a", "b"))),
        (pw.P("x"), {"x": 5}, None),
        (pw.P(), {"a": 2}, pw.P()),
        (pw.P("x", None), {"x": 1}, pw.P("x")),
    ],
)
def test_the_layout_most_like_one_of_four_devices(given, axes, found) -> None:
    four = AbstractMesh((4,), ("x",), axis_types=AXES)
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=AXES * len(axes))
    layout = analogous(NamedSharding(four, given), mesh, (12, 12))
    assert (layout is None) if found is None else layout.is_equivalent_to(NamedSharding(mesh, found), 2)


def test_a_layout_over_some_axes_that_are_not_there_has_no_like() -> None:
    square = AbstractMesh((2, 2), ("a", "b"), axis_types=AXES * 2)
    assert analogous(NamedSharding(square, pw.P("a")), AbstractMesh((2,), ("x",), axis_types=AXES), (12,)) is None


def test_the_script_of_the_readme_on_four_and_two_devices(fresh_python: Callable[..., Any]) -> None:
    script = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)[1]
    wider = script.replace("devices_per_island=2", "devices_per_island=4")
    wider = wider.replace("pw.virtual_slice(2), pw.virtual_slice(2)", "pw.virtual_slice(4), pw.virtual_slice(2)")
    assert wider.count("slice(4)") == 1
    done = [fresh_python(code) for code in (script, wider)]
    assert [one.returncode for one in done] == [0, 0], done[1].stderr[-2000:]
    losses, others = ([float(n) for n in re.findall(r"^\d+ ([\d.]+)$", one.stdout, re.MULTILINE)] for one in done)
    close(losses, others, 1e-3)
