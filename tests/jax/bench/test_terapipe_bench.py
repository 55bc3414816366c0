"""What the bench of TeraPipe states about the paper's results, all ten settings of it."""

from __future__ import annotations

import pytest

from pathways_nb.bench import terapipe
from pathways_nb.parallel.terapipe import published_steps as published


@pytest.fixture(scope="module")
def rows():
    """The ten settings, predicted."""
    return published.settings()


def test_the_mean_error_is_that_of_eight_settings(rows):
    errors = {row["setting"]: abs(row["error"]) for row in rows}
    assert len(errors) == 10
    counted = [error for setting, error in errors.items() if setting not in ("2", "3")]
    assert published.mean_error(rows) == pytest.approx(sum(counted) / 8)
    assert published.mean_error(rows) <= 0.1


def test_the_optimum_is_not_slower_than_the_published_slices(rows):
    assert all(row["with_predicted"] <= row["published_slices_predicted"] * (1 + 1e-9) for row in rows)


def test_the_ablation_says_what_was_fitted():
    rows = published.ablation()
    assert [row["slices"] for row in rows if row["declared"] == "predicted"] == ["optimum", "optimum"]
    assert len([row for row in rows if row["declared"] == "fitted"]) == 11


def test_figures_of_the_slicer():
    part = terapipe._solving()
    assert set(part["figures"]) == {"solve_seconds_175b", "solve_seconds_8192"}
    assert all(row["latency"] < row["best_uniform"] for row in part["detail"]["solving"])
