"""What a simulated controller cost, beside closed forms: chains above and below its dispatch, pipelines with a bubble."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pathways_nb as pw

X = jax.ShapeDtypeStruct((), jnp.float32)
NODES = 64
LAUNCH = 2e-5
few = settings(max_examples=20, deadline=None)
costs = st.floats(1e-6, 1e-3)


def attached(islands: int = 1, dispatch: Any = "parallel", **host: float) -> pw.Controller:
    """Islands of one device; controller and hosts cost what is said and nothing else, networks nothing."""
    free = dict.fromkeys(("call", "message", "per_host", "launch", "notice", "device_launch"), 0.0)
    network = pw.network("tpu_dcn").replace(host_bw=1e30, rtt=0.0)
    return pw.attach(
        "sim", chip="tpu_v4", islands=islands, devices_per_island=1, network=network, dispatch=dispatch,
        host={**free, **host},
    )  # fmt: skip


def chain(seconds: float, nodes: int = NODES) -> pw.Program:
    work = pw.work(seconds, on=pw.virtual_slice(1))

    def body(x: Any) -> Any:
        for _ in range(nodes):
            x = work(x)
        return x

    return pw.program(body, name="chain")


def forward(stages: int, microbatches: int, seconds: float) -> pw.Program:
    """A pipeline without a backward pass: microbatches one after another through stages on islands of their own."""
    works = [pw.work(seconds, on=pw.virtual_slice(1, island=i), name=f"stage{i}") for i in range(stages)]

    def body(x: Any) -> list[Any]:
        found = []
        for _ in range(microbatches):
            y = x
            for work in works:
                y = work(y)
            found.append(y)
        return found

    return pw.program(body, name="pipeline")


@few
@given(costs, costs)
def test_a_chain_shorter_than_its_dispatch_waits_for_it_and_a_longer_one_hides_it(node: float, launch: float) -> None:
    with attached(launch=launch):
        run = chain(node).run(X)
    found = run.overhead()
    # The host enqueues one node after another; devices take the first when it is there.
    expected = NODES * launch + node if node < launch else launch + NODES * node
    assert found.makespan == pytest.approx(expected) == pytest.approx(run.summary().makespan)
    assert found.without == pytest.approx(NODES * node)
    assert found.share == pytest.approx(1 - NODES * node / expected, abs=1e-9)
    assert (found.dispatch, found.node) == pytest.approx((NODES * launch, launch))
    assert found.hidden_from == pytest.approx(launch)
    assert found.fed_by == "dispatch"
    assert found.call is None  # there was one, and nothing before it
    assert run.idle().seconds["dispatch"] == pytest.approx(expected - NODES * node)


@few
@given(st.integers(1, 5), st.integers(1, 8), costs, costs)
def test_a_pipelines_bubble_and_its_dispatch_are_told_apart(
    stages: int, microbatches: int, seconds: float, launch: float
) -> None:
    with attached(stages, launch=launch):
        run = forward(stages, microbatches, seconds).run(X)
    found = run.overhead()
    # Stage s begins microbatch m when its host has enqueued it, and the stage before has ended it.
    pace = max(seconds, launch)
    assert found.makespan == pytest.approx(launch + (microbatches - 1) * pace + stages * seconds)
    # Without dispatch the bubble is left: (stages - 1) of (microbatches + stages - 1) slots.
    assert found.without == pytest.approx((microbatches + stages - 1) * seconds)
    busy = microbatches * seconds / found.without
    assert 1 - busy == pytest.approx((stages - 1) / (microbatches + stages - 1))
    total = stages * found.makespan
    assert run.idle().seconds["busy"] / total == pytest.approx(busy * (1 - found.share))


def test_calls_cost_their_clients_thread_and_hide_behind_long_nodes() -> None:
    with attached(call=1e-4, launch=LAUNCH), pw.record() as run:
        program = chain(5e-6, nodes=2)
        pw.wait([program(X) for _ in range(8)])
    found = run.overhead()
    assert found.call == pytest.approx(1e-4)
    # A program's two nodes have to last as long as its call.
    assert found.hidden_from == pytest.approx(1e-4 / 2)
    assert found.fed_by == "calls"
    assert "20 µs a node, 100 µs a call" in run.summary_line()


def test_a_full_queue_is_the_dispatchs_doing() -> None:
    with attached(call=1e-6, launch=LAUNCH), pw.record() as run:
        program = chain(LAUNCH / 2)
        pw.wait([program(X) for _ in range(200)])
    assert any("back-pressure" in name for name in run.events.of_kind("stall")["name"])
    assert run.overhead().share == pytest.approx(0.5, rel=1e-2)


def test_messages_feed_devices_too() -> None:
    with attached(message=1e-3, per_host=1e-3), pw.record() as run:
        program = chain(1e-4, nodes=1)
        pw.wait([program(X) for _ in range(10)])
    found = run.overhead()
    assert found.hidden_from == pytest.approx(2e-3)
    assert found.fed_by == "messages"


def test_no_node_hides_sequential_dispatch() -> None:
    with attached(dispatch="sequential", message=1e-4, launch=LAUNCH):
        run = chain(1.0, nodes=4).run(X)
    found = run.overhead()
    assert (found.hidden_from, found.fed_by) == (None, "")
    assert "sequential, so no node hides it" in run.summary_line()
    assert found.makespan - found.without == pytest.approx(4 * (1e-4 + LAUNCH))


def test_costs_beside_those_that_are_named_stay_as_they_are(tmp_path: Path) -> None:
    with pw.attach("sim", chip="tpu_v4", devices_per_island=1, host={"launch": 1.0}) as controller:
        assert (controller.driver.model.host.launch, controller.driver.model.host.call) == (1.0, 1e-4)
        host = controller.driver.model.host
        run = pw.program(pw.work(1e-3, on=pw.virtual_slice(1)), name="one").run(X)
    assert host.origin("launch").kind == "yours"
    with pw.attach("sim", chip="gpu_h100_sxm", host=host) as other:
        assert other.driver.model.host is host
    run.save(tmp_path / "a.run")
    assert pw.load(tmp_path / "a.run").about["options"]["host"] == {"launch": 1.0}
    assert pw.load(tmp_path / "a.run").overhead() == run.overhead()


@pytest.mark.parametrize(
    ("host", "text"),
    [
        (
            {"lunch": 1e-6},
            r"attach\(host=…\): there is no field 'lunch'; did you mean 'launch' or 'device_launch'\? Fields: call, ",
        ),
        ({"call": -1}, r"attach\(host=…\): call is -1; write a finite number of seconds, 0 or more\."),
        (1e-6, r"attach\(host=1e-06\): write seconds by name, such as host=\{'launch': 5e-6, 'call': 2e-5\}\."),
    ],
)
def test_costs_that_are_none_are_refused(host: Any, text: str) -> None:
    with pytest.raises(pw.UsageError, match=text):
        pw.attach("sim", chip="tpu_v4", host=host)
    with pytest.raises(pw.UsageError, match=r"host is for simulated devices, pw\.attach\(\"sim\", host=…\)"):
        pw.attach("cpu", host={"launch": 1e-6})
