"""The bench of experts, with a tiny model: its figures, and that its batches leave experts without tokens."""

from __future__ import annotations

import numpy as np
import pytest

from pathways_nb.bench import experts, report
from pathways_nb.examples import mixture
from pathways_nb.parallel.sparse_experts import route

TINY = {"PLACES": 2, "TOKENS": 16, "DIM": 16, "HIDDEN": 8, "LEAST": 8, "FIRST": 1, "STEPS": 3, "ROUNDS": 1}


def test_it_reports_bytes_seconds_and_new_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (experts.FIRST, experts.STEPS) == (10, 100)
    for name, value in TINY.items():
        monkeypatch.setattr(experts, name, value)
    made = report.measure("experts")
    assert list(made["figures"]) == [
        "bytes_sparse_over_dense",
        "seconds_sparse_over_dense",
        "seconds_sparse_over_jax_dense",
        "retraces_in_3_steps",  # 100, if it is not tiny
    ]
    assert 0 < made["figures"]["bytes_sparse_over_dense"] < 1
    assert all(made["figures"][f"seconds_sparse_over_{other}"] > 0 for other in ("dense", "jax_dense"))
    assert set(made["units"].values()) == {""}


def test_its_batches_differ_in_the_experts_that_get_tokens() -> None:
    kinds, pairs = experts.kinds_and_pairs()
    front, _ = mixture.init(kinds, 1)
    masks = [route(mixture.features(front, experts.batch(pairs)[0])[1], experts.TOP) for _ in range(10)]
    chosen = {tuple(np.flatnonzero(mask.any(0))) for mask in masks}
    assert len(chosen) > 3
    assert min(map(len, chosen)) < experts.EXPERTS
