"""The bench of islands, with a tiny model: its figures, and that it trains on the whole batch."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.bench import islands, report
from pathways_nb.examples import llama


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BLOCKS": 2, "ROWS": 2, "TOKENS": 8, "ROUNDS": 2}.items():
        monkeypatch.setattr(islands, name, value)
    size = llama.Size(features=32, shared_heads=1, hidden=16, vocabulary=16)
    monkeypatch.setattr(llama.stages, "__defaults__", (size, 0))
    monkeypatch.setattr(llama.batch, "__defaults__", (size, 0))


def test_it_reports_the_hidden_share_and_throughputs(tiny) -> None:
    made = report.measure("islands")
    assert list(made["figures"]) == [
        "exchange_hidden_share",
        "two_islands_over_one",
        "two_islands_without_exchange_over_one",
        "two_islands_over_no_exchange",
        "two_islands_over_plain_jax_all_cores",
    ]
    assert 0 <= made["figures"]["exchange_hidden_share"] <= 1
    assert all(value > 0 for name, value in made["figures"].items() if "over" in name)
    assert set(made["units"].values()) == {""}


def test_its_islands_stay_equal(tiny) -> None:
    with pw.attach("cpu", islands=2, devices_per_island=1):
        trainer = islands.Trainer([pw.virtual_slice(1, island=island) for island in range(2)])
        trainer.step()
        first, second = (np.concatenate([x.ravel() for x in jax.tree.leaves(tree)]) for tree in pw.get(trainer.params))
        np.testing.assert_array_equal(first, second)
        assert len(trainer.exchanges) == 1
        assert trainer.exchanges[0].seconds > 0


def test_a_throughput_counts_sequences() -> None:
    assert islands.throughput({"two": [2.0, 1.0], "one": [1.5, 1.0]}, "two", "one") == pytest.approx(1.75)
