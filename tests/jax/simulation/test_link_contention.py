"""Transfers that take turns on links: the path tiles the makespan, and what if is what a new simulation gives."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.cost.model import CostModel
from pathways_nb.trace.causality.what_if import what_if
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row
from tests.support.simulated import NO_HOSTS

DISPATCH = st.sampled_from(["parallel", "sequential"])
MODEL = st.sampled_from([NO_HOSTS, CostModel.of("tpu_v3")])
FASTER = st.sampled_from([0.5, 2.0, 8.0])
WHOLE = [pw.virtual_slice(4, island=island, name=f"island {island}") for island in range(3)]
HALVES = [pw.virtual_slice(2, island=0, name=f"half {half}") for half in range(2)]


@dataclass(frozen=True)
class Node:
    """A work of a random program; ``reads`` is what it is given, -1 for nothing."""

    place: pw.VirtualSlice
    seconds: float
    bytes: int
    reads: int


def random_nodes(seed: int, places: list[pw.VirtualSlice]) -> list[Node]:
    """Short works, most of which read what another place has made and is slow to send."""
    rng = random.Random(seed)
    return [
        Node(
            rng.choice(places),
            rng.uniform(2e-5, 5e-4),
            rng.choice([10**6, 10**7, 4 * 10**7]),
            rng.randrange(at) if at > 3 and rng.random() < 0.9 else -1,
        )
        for at in range(rng.randint(6, 20))
    ]


def run(nodes: list[Node], model: CostModel, dispatch: str, fast: int = -1, faster: float = 1.0) -> pw.Run:
    """All of them, one of them faster."""
    works = [
        pw.work(node.seconds / (faster if at == fast else 1.0), on=node.place, output_bytes=node.bytes, name=f"n{at}")
        for at, node in enumerate(nodes)
    ]

    def body() -> list[object]:
        made: list[object] = []
        for work, node in zip(works, nodes, strict=True):
            made.append(work(made[node.reads]) if node.reads >= 0 else work())
        return made

    with pw.attach("sim", chip=model, islands=3, devices_per_island=4, dispatch=dispatch):
        return pw.program(body, name="shared").run()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**9), DISPATCH, MODEL)
def test_no_hole_is_left_where_a_transfer_waited_for_its_link(seed: int, dispatch: str, model: CostModel) -> None:
    found = run(random_nodes(seed, WHOLE + HALVES), model, dispatch)
    path, makespan = found.critical_path(), found.summary().makespan
    assert path.length == pytest.approx(makespan, rel=1e-12)
    assert [s.start for s in path.segments[1:]] == [s.end for s in path.segments[:-1]]
    assert all(segment.event >= 0 for segment in path.segments)
    assert sum(found.idle().seconds.values()) == pytest.approx(12 * makespan)
    assert found.idle().seconds["dispatch"] == pytest.approx(0, abs=1e-15) or model is not NO_HOSTS


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**9), DISPATCH, MODEL, FASTER)
def test_a_node_that_is_faster(seed: int, dispatch: str, model: CostModel, faster: float) -> None:
    nodes = random_nodes(seed, WHOLE + HALVES)
    fast = seed % len(nodes)
    found = run(nodes, model, dispatch).what_if(node=f"n{fast}", faster=faster)
    simulated = run(nodes, model, dispatch, fast, faster).summary().makespan
    assert found.after == pytest.approx(simulated, rel=1e-9) or not found.exact, found.summary_line()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**9), DISPATCH, FASTER)
def test_a_network_that_is_faster(seed: int, dispatch: str, faster: float) -> None:
    """All bytes and all latencies: so every part of a transfer is."""
    nodes, network = random_nodes(seed, WHOLE), NO_HOSTS.network
    quick = network.replace(host_bw=network.host_bw * faster, rtt=network.rtt / faster)
    found = run(nodes, NO_HOSTS, dispatch)
    if found.events.is_("kind", "transfer").any():
        told = found.what_if(kind="transfer", faster=faster)
        simulated = run(nodes, CostModel.of("tpu_v3", quick, host=NO_HOSTS.host), dispatch).summary().makespan
        assert told.after == pytest.approx(simulated, rel=1e-9) or not told.exact, told.summary_line()


def test_most_answers_are_exact_and_none_of_a_real_run_is() -> None:
    asked = [run(random_nodes(seed, WHOLE), NO_HOSTS, "parallel").what_if(node="n1", faster=2) for seed in range(6)]
    assert sum(found.exact for found in asked) >= 4
    assert "recorded; exact: a new simulation would keep them." in next(f for f in asked if f.exact).summary_line()


LINKS = ("out of island 0, dev 0–3", "into island 1, dev 0–3")


def sharing(*spans: tuple[float, float, float]) -> Events:
    """Works on places of their own, each with what it sends over one link that leaves it a second before it is there;
    spans are the ends of the works, and starts and ends of the transfers.
    """
    rows = []
    for node, (ready, start, end) in enumerate(spans):
        made = Label("compute", f"f{node}", "p", node=node, island=0, device=node, devices=1)
        move = Label("transfer", f"x{node}", "p", node=10 + node, island=1, devices=4, parents=(node,), route="DCN",
                     links=LINKS, latency=1.0)  # fmt: skip
        rows += [Row(made, 0, ready, 0, "simulated"), Row(move, start, end, 0, "simulated")]
    return Events.from_rows(rows)


def test_a_transfer_follows_what_was_on_its_link() -> None:
    events = sharing((1, 1, 5), (2, 4, 8), (3, 7, 11))
    found = what_if(events, node="f0", faster=2)
    assert (found.before, found.after, found.exact) == (11, 10.5, True)
    assert [(s.name, s.start, s.end) for s in found.path.segments] == [
        ("f0", 0, 0.5), ("x0", 0.5, 3.5), ("x1", 3.5, 6.5), ("x2", 6.5, 10.5),
    ]  # fmt: skip
    assert what_if(events, node="x1", faster=2).after == 9.5, "it leaves its link after 1.5 s, not after 3"


def test_what_comes_to_a_link_in_another_order_is_an_estimate() -> None:
    events = sharing((1, 1, 5), (2, 4, 8))
    assert what_if(events, node="f0", faster=0.6).exact
    assert what_if(events, node="f0", faster=0.4).doubt == "transfers would come to a busy link in another order"


def test_what_else_a_record_cannot_tell_is_an_estimate() -> None:
    f = Label("compute", "f", "p", node=0, island=0, devices=1)
    stall = Row(Label("stall", "memory of island 0 held by bob", "p"), 0, 1, 0, "simulated")
    beside = Label("compute", "f", "p", node=0, island=0, devices=1, basis="declared, interference")
    enqueue = Label("enqueue", "p", "p", island=0)
    begun = [Row(enqueue, 0, 4, 0, "simulated"), Row(f, 1, 3, 0, "simulated")]
    g = Label("compute", "g", "p", node=1, island=0, devices=1, parents=(0,))
    for rows, doubt in (
        ([Row(f, 0, 1, 0)], "its times were measured"),
        ([stall, Row(f, 0.5, 2, 0, "simulated")], "programs waited for memory or their turn"),
        ([Row(beside, 0, 1, 0, "simulated")], "what nodes cost depended on what ran beside them"),
        ([*begun, Row(g, 3, 5, 0, "simulated")], "messages or launches would meet others on the controller or a host"),
        ([*begun, Row(g, 5, 6, 0, "simulated")], ""),
    ):
        found = what_if(Events.from_rows(rows), node="f", faster=1.5)
        assert found.doubt.startswith(doubt), rows
        assert found.exact == (not doubt), rows
