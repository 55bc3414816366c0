"""Exact stamps: matched launch by launch, true on the record's own clock, and never guessed."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.runtime.local.profiler import Profiler

pytestmark = pytest.mark.usefixtures("usual_effort")

v = np.arange(8, dtype=np.float32)
matrix = np.full((256, 256), 0.01, np.float32)


def test_every_launch_of_a_block_gets_exact_stamps(controller, left, right) -> None:
    square = pw.jit(lambda x: x @ x, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    total = pw.jit(lambda x: (x @ x).sum(), on=right, in_shardings=pw.P("x"))
    twice = pw.jit(lambda x: x * 2 + jnp.sin(x), on=pw.virtual_slice(1, island=1))
    step = pw.program(lambda x: twice(total(square(square(x)))), name="step")
    step(matrix).wait()
    before = time.perf_counter()
    with pw.profile() as run:
        for _ in range(5):
            y = step(matrix)
        y.wait()
        after = time.perf_counter() - run.record.origin
    computed = run.events.of_kind("compute")
    assert run.stamps is not None
    assert run.stamps.matched == run.stamps.launches == len(computed) == 20
    assert set(computed["quality"]) == {"exact"}
    assert before - run.record.origin - 1e-4 <= computed["start"].min()
    assert computed["end"].max() <= after + 1e-4, "on the record's clock, to a tenth of a millisecond"
    assert (computed["end"] > computed["start"]).all()
    for serial in set(computed["run"]):  # each needs the one before
        one = computed.select(computed["run"] == serial)
        assert (np.diff(one["start"][np.argsort(one["node"])]) > 0).all()
    assert "exact stamps for 20 of 20 launches; estimated ends were off by" in run.summary_line()


def test_stamps_are_kept_with_a_saved_run(controller, left, tmp_path) -> None:
    add = pw.jit(lambda x: x + 1, on=left, in_shardings=pw.P("x"))
    with pw.profile() as run:
        add(v)
    run.save(tmp_path / "exact.run")
    again = pw.load(tmp_path / "exact.run")
    assert again.stamps == run.stamps
    assert again.summary_line() == run.summary_line()


def test_one_profile_at_a_time(controller, left) -> None:
    add = pw.jit(lambda x: x + 1, on=left)
    with pw.profile() as run:
        with pytest.raises(pw.UsageError, match=r"profiler cannot start.*end the other pw\.profile block"):
            pw.profile(show="timeline").__enter__()
        add(v)
    assert run.stamps is not None
    assert run.stamps.matched == 1


def test_a_block_without_launches_says_so(controller) -> None:
    with pw.profile() as run:
        pw.reset()
    assert run.stamps is None
    with pw.profile() as run:
        pass
    assert run.stamps is None or str(run.stamps) == "exact stamps for none: nothing was launched"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_profiler_is_free_again_after_an_error(controller, left, error) -> None:
    add = pw.jit(lambda x: x + 1, on=left)
    with pytest.raises(error), pw.profile():
        raise error
    with pw.profile() as run:
        add(v)
    assert run.stamps is not None
    assert run.stamps.matched == 1


def test_a_failed_launch_leaves_the_others_exact(controller) -> None:
    single = pw.virtual_slice(1, island=0)

    def fails(x):
        raise ZeroDivisionError("no")

    @pw.jit(on=single)
    def good(x):
        return x @ x

    bad = pw.jit(lambda x: jax.pure_callback(fails, jax.ShapeDtypeStruct((), np.float32), x), on=single)
    with pw.profile() as run:
        y = good(matrix)
        z = bad(np.float32(1))
    y.wait()
    with pytest.raises(pw.NodeError):
        z.result()
    qualities = {event["name"]: event["quality"] for event in run.events.of_kind("compute")}
    assert qualities["good"] == "exact"
    assert run.stamps is not None
    assert run.stamps.matched == sum(quality == "exact" for quality in qualities.values())


def test_a_launch_that_never_came_to_be_leaves_those_of_its_kind_exact(controller, left) -> None:
    square = pw.program(pw.jit(lambda x: x @ x, on=left), name="square")
    square(matrix).wait()
    with pw.inject_fault(after=1, times=1), pw.profile() as run:
        ys = [square(matrix) for _ in range(3)]
    with pytest.raises(pw.NodeError):
        ys[1].result()
    assert run.events.of_kind("compute")["status"].tolist().count("failed") == 1
    assert run.stamps is not None
    assert (run.stamps.matched, run.stamps.launches) == (2, 2)


def test_levels_of_memory_end_before_the_profile_is_read(controller, left, monkeypatch) -> None:
    stop, stamps = Profiler.stop, []

    def stamped(self):
        stamps.append(self.clock())
        return stop(self)

    monkeypatch.setattr(Profiler, "stop", stamped)
    square = pw.program(pw.jit(lambda x: x @ x, on=left), name="square")
    with pw.profile() as run:
        y = square(matrix)
    y.wait()
    levels = run.events.of_kind("memory")
    assert len(levels)
    assert levels["end"].max() + run.record.origin <= stamps[0]


def test_a_call_that_is_under_way_ends_before_the_profile_begins(controller, left) -> None:
    slow = pw.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: jnp.tanh(y @ x), x), on=left)
    slow(matrix).wait()
    under_way = slow(matrix)
    with pw.profile() as run:
        assert under_way.done()
        slow(matrix)
    assert run.stamps is not None
    assert run.stamps.matched == run.stamps.launches == 1


def test_a_profiler_that_writes_to_a_bucket_only_says_what_to_do(controller, monkeypatch) -> None:
    """As on Pathways on Cloud, whose profiler takes the place of JAX's own."""

    def refuses(folder, **_):
        raise ValueError(f"Path must be a GCS path, got {folder}")

    monkeypatch.setattr(jax.profiler, "start_trace", refuses)
    with pytest.raises(pw.UsageError, match=r"writes to a bucket only.*jax\.profiler\.trace\('gs://…'\).*pw\.load"):
        pw.profile().__enter__()


def test_a_profile_that_somebody_stops_says_so_and_the_next_works(controller, left) -> None:
    add = pw.jit(lambda x: x + 1, on=left)
    block = pw.profile()
    block.__enter__()
    add(v)
    jax.profiler.stop_trace()
    with pytest.raises(pw.UsageError, match="was stopped inside the block, so there are no exact times"):
        block.__exit__(None, None, None)
    with pw.profile() as run:
        add(v)
    assert run.stamps is not None
    assert run.stamps.matched == 1


def test_planes_that_are_not_understood_are_said(controller, left, monkeypatch) -> None:
    start = Profiler.start

    def with_unread(self):
        start(self)
        self.unread["/device:NPU:0, line 'Queue'"] = 3

    monkeypatch.setattr(Profiler, "start", with_unread)
    with pw.profile() as run:
        pw.jit(lambda x: x + 1, on=left)(v)
    assert "not understood: /device:NPU:0, line 'Queue' (3 events)" in run.summary_line()
