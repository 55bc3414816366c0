"""The dispatch bench in small: every figure is there under its name, peers only where they are installed."""

from __future__ import annotations

import contextlib
import math

import pytest

from pathways_nb.bench import _calls, _hidden_dispatch, dispatch, peers
from pathways_nb.bench._hidden_dispatch import Rung


@pytest.fixture
def small(controller, monkeypatch):
    """A few computations on two devices; the peer is a loop in Python."""
    for name, value in {"DEVICES": (1, 2), "CHAINS": (1, 4), "LONG": 4, "ROUNDS": 1, "_COMPUTATIONS": 8}.items():
        monkeypatch.setattr(dispatch, name, value)
    for name, value in {"SIZES": (1, 2), "LENGTH": 2, "ENOUGH": 0.0}.items():
        monkeypatch.setattr(_hidden_dispatch, name, value)
    for name, value in {"PARAMETERS": 2, "MANY": 3, "_CALLS": 2, "_STEPS": 1}.items():
        monkeypatch.setattr(_calls, name, value)
    monkeypatch.setattr(dispatch, "PEER_DEVICES", (2,))
    monkeypatch.setattr(dispatch, "PEER_ROUNDS", 1)

    @contextlib.contextmanager
    def peer(workers):
        yield lambda count: [peers._step(*[1.0] * workers) for _ in range(count)]

    @contextlib.contextmanager
    def broken(workers):
        raise RuntimeError("it timed out")
        yield

    monkeypatch.setattr(peers, "installed", lambda: {"broken": broken, "fake": peer})
    return dispatch.run()


def test_every_figure_has_its_name(small) -> None:
    loops = {f"chained_over_jax_{kind}_{n}x{d}" for kind in ("loop", "blocking") for n in (1, 4) for d in (1, 2)}
    forms = {f"{name}_4x{d}" for name in ("chained_over_opbyop", "fused_over_chained") for d in (1, 2)}
    calls = {"call_us", "step_overhead_ms_2_leaves", "step_overhead_ms_2_leaves_program"}
    first = {"first_call_seconds_2000_leaves", "node_overhead_us", "smallest_hidden_ms_1", "chained_over_fake_2"}
    assert set(small["figures"]) == loops | forms | calls | first
    assert all(math.isfinite(value) for value in small["figures"].values())
    measured = [row for row in small["detail"] if "chain" in row]
    assert {(row["devices"], row["chain"]) for row in measured} == {(1, 1), (1, 4), (2, 1), (2, 4)}


def test_the_short_form_has_loops_alone(small, controller, monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "SHORT", ((2,), (1,), 1))
    figures = {"chained_over_jax_loop_1x2", "chained_over_jax_blocking_1x2", "call_us"}
    assert set(dispatch.run(short=True)["figures"]) == figures


def test_a_peer_that_does_not_start_is_absent_with_its_reason(small) -> None:
    assert [row for row in small["detail"] if "absent" in row] == [
        {"devices": 2, "peer": "broken", "absent": "RuntimeError: it timed out"}
    ]


def test_a_nodes_overhead_is_what_the_chain_takes_beyond_the_loop_for_each(monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "_COMPUTATIONS", 100)
    assert dispatch._overhead({"chained": [3.0, 2.0, 9.0], "loop": [1.0, 1.0, 1.0]}) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("ratios", "found"),
    [
        ((0.2, 0.94, 0.95, 1.1), 2),
        # A size that reaches it by luck, below one that does not, is not the answer.
        ((0.97, 0.9, 0.96, 0.96), 2),
        ((1.0, 1.0, 1.0, 1.0), 0),
        ((1.0, 1.0, 1.0, 0.94), None),
    ],
)
def test_the_smallest_hidden_node_is_the_first_from_which_on_all_reach_the_loop(ratios, found) -> None:
    rungs = [Rung(4 * 2**k, 1e-5 * 2**k, one) for k, one in enumerate(ratios)]
    assert _hidden_dispatch.smallest_hidden(rungs) == (None if found is None else rungs[found])
    assert _hidden_dispatch.SIZES[:5] == (4, 6, 9, 14, 20)
    steps = zip(_hidden_dispatch.SIZES, _hidden_dispatch.SIZES[1:], strict=False)
    assert all(b / a == pytest.approx(1.5, rel=0.05) for a, b in steps)


def test_the_contenders_compute_the_same(controller, monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "_COMPUTATIONS", 4)
    for devices in (1, 2):
        chained, fused = (dispatch._Chain(controller, devices, 4, fuse=fuse) for fuse in (False, True))
        expected = 1.0
        for _ in range(4):
            expected = devices * expected + 1
        assert float(chained.program(chained.start)) == float(fused.program(fused.start)) == expected
        assert [len(chain.program.graph(chain.start).nodes) for chain in (chained, fused)] == [6, 3]


def test_peers_that_are_not_installed_are_absent(monkeypatch) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None if name == "ray" else object())
    assert list(peers.installed()) == ["dask"]
