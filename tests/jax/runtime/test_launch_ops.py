"""Ops inside launches: seen on every device, within the launch, under the names that the program gave them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw

pytestmark = pytest.mark.usefixtures("usual_effort")

w = np.full((16, 8), 0.1, np.float32)
x = np.ones((16, 16), np.float32)


def hidden(w, x):
    with jax.named_scope("gather"):
        whole = jax.lax.all_gather(w, "x", tiled=True)
    with jax.named_scope("layer"):
        h = jnp.tanh(x @ whole)
    with jax.named_scope("scatter"):
        return jax.lax.psum_scatter(jnp.tile(h, (4, 1)), "x", tiled=True)


@pytest.fixture
def step(left) -> pw.Program:
    sharded = pw.shard_map(hidden, on=left, in_specs=(pw.P("x"), pw.P("x")), out_specs=pw.P("x"))
    made = pw.program(lambda w, x: sharded(w, x), name="step")
    made(w, x).wait()
    return made


def test_collectives_are_found_on_each_device_with_their_scopes(controller, left, step) -> None:
    with pw.profile() as run:
        for _ in range(2):
            y = step(w, x)
        y.wait()
    launches = run.events.of_kind("compute")
    devices = launches["devices"][0]
    assert len(launches) == 2
    for launch in launches:
        inside = run.ops.of("hidden", run=launch["run"])
        assert set(inside["device"]) == set(range(devices))
        assert (inside["start"] >= launch["start"]).all()
        assert (inside["end"] <= launch["end"]).all()
        assert (inside["program"] == "step").all()
        for device in range(devices):
            sources = [op.source for op in inside.of(device=device, kind="collective")]
            assert len(sources) == 2
            assert "/gather/all_gather" in sources[0]
            assert "/scatter/reduce_scatter" in sources[1] or "/scatter/psum_scatter" in sources[1]
            assert any(source.endswith("layer/tanh") for source in inside.of(device=device)["source"])
    assert 0 < run.ops.joined <= 1


def test_a_loop_is_listed_as_the_ops_that_it_runs(controller, left) -> None:
    def summed(x):
        return jax.lax.fori_loop(0, 3, lambda _, x: x + jax.lax.psum(x, "x"), x)

    loop = pw.shard_map(summed, on=left, in_specs=(pw.P("x"),), out_specs=pw.P("x"))
    with pw.profile() as run:
        loop(x).wait()
    on_first = run.ops.of("summed", device=0)
    assert ["/while/body/" in op.source for op in on_first.of(kind="collective")] == [True] * 3
    assert not any(op.source.endswith("/while") and op.kind == "compute" for op in on_first)


def test_two_programs_of_one_name_have_their_own_sources(controller, left) -> None:
    def f(x):
        with jax.named_scope(f"rows{len(x)}"):
            return jnp.sin(x)

    one = pw.jit(f, on=left)
    with pw.profile() as run:
        pw.wait([one(x), one(x[:8])])
    sources = [set(run.ops.of(run=launch["run"], launch="f")["source"]) for launch in run.events.of_kind("compute")]
    assert {"rows16" in "".join(sources[0]), "rows8" in "".join(sources[-1])} == {True}


def test_a_recording_within_a_profile_keeps_its_names(controller, left, step) -> None:
    with pw.profile() as run, pw.record() as inner:
        step(w, x).wait()
    assert len(inner.ops) == 0
    assert any(source.endswith("layer/tanh") for source in run.ops["source"])


def test_they_are_kept_in_a_file_and_drawn(controller, left, step, tmp_path) -> None:
    with pw.profile("seen") as run:
        step(w, x).wait()
    run.save(tmp_path / "a.run")
    again = pw.load(tmp_path / "a.run")
    assert list(again.ops) == list(run.ops) != []
    again.savefig(tmp_path / "a.svg", show=("ops",))
    drawn = (tmp_path / "a.svg").read_text("utf-8")
    assert "dev 3 · collectives" in drawn
    assert f"{len(run.ops)} are ops" in drawn
