"""When launches end: sampled to a budget, never dropped, and a failure is still named by the node that failed."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import pathways_nb as pw

v = np.arange(8, dtype=np.float32)


def chain(place: pw.VirtualSlice, length: int) -> pw.Program:
    """``length`` additions, one after another."""
    add = pw.jit(lambda x: x + 1, on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x"))

    def body(x):
        for _ in range(length):
            x = add(x)
        return x

    return pw.program(body, name="chain")


@pytest.mark.parametrize(("budget", "all_watched"), [(float("inf"), True), (0.0, False)])
def test_the_share_of_ends_watched_follows_the_budget(controller, left, budget, all_watched) -> None:
    step = chain(left, 40)
    step(v).wait()
    controller.driver.spend(budget)
    run = step.run(v)
    summary = run.summary()
    assert summary.launches == 40
    assert (summary.interpolated == 0) is all_watched
    assert ("of ends watched" in str(summary)) is not all_watched
    events = run.events.of_kind("compute")
    assert (np.diff(events["end"]) >= 0).all()
    assert (events["end"][:-1] <= events["start"][1:] + 1e-9).all(), "one at a time on the same devices"


def test_a_failure_within_a_group_is_told_of_its_own_node(controller, left) -> None:
    def fails(x):
        if float(x) == 3:
            raise ZeroDivisionError("three")
        return np.asarray(x)

    single = pw.virtual_slice(1, island=0)
    add = pw.jit(lambda x: x + 1, on=single)
    check = pw.jit(lambda x: jax.pure_callback(fails, jax.ShapeDtypeStruct((), np.float32), x), on=single)

    @pw.program
    def step(a, b):
        for _ in range(6):
            a = add(a)
        bad = check(b)
        for _ in range(6):
            a = add(a)
        return a, add(bad)

    pw.wait(step(np.float32(0), np.float32(1)))
    controller.driver.spend(0.0)
    good, bad = step(np.float32(0), np.float32(3))
    assert float(good) == 12
    with pytest.raises(pw.NodeError, match=r"fails|<lambda>.*three"):
        bad.result()
