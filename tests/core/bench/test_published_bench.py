"""The bench of published steps: what its figures mean, on a few made-up steps and pairs."""

from __future__ import annotations

import math

import pytest

from pathways_nb.bench.published import _figures


def step(predicted: float, constant: float, low: float, high: float, **more) -> dict:
    """A step that was measured at one second."""
    return {"measured": 1.0, "predicted": predicted, "constant": constant, "low": low, "high": high, "bytes": 2.0,
            "peak": None, **more}  # fmt: skip


def test_errors_are_mean_absolute_logarithms_and_bands_are_relative_to_the_prediction():
    table = [step(math.e, 1.0, 1.5, 4.0), step(math.exp(-0.5), math.exp(0.2), 0.5, 1.1, peak=1.0)]
    found = _figures(table, [])
    assert found["published_error"] == pytest.approx(0.75)
    assert found["published_error_of_constant"] == pytest.approx(0.1)
    assert found["inside_bands"] == 0.5
    assert found["band_width"] == pytest.approx((2.5 / math.e + 0.6 / math.exp(-0.5)) / 2)
    assert found["memory_error"] == pytest.approx(math.log(2))
    assert "order_kept" not in found, "there are no pairs"


def test_pairs_that_hardly_differ_are_not_ordered_and_a_tie_is_wrong():
    pairs = [
        {"measured": 0.3, "predicted": 0.1, "constant": 0.0},
        {"measured": -0.3, "predicted": 0.0, "constant": -0.3},
        {"measured": 0.04, "predicted": -0.5, "constant": 0.04},
    ]
    found = _figures([step(1.0, 1.0, 1.0, 1.0)], pairs)
    assert found["order_kept"] == 0.5
    assert found["published_ratio_error"] == pytest.approx((0.2 + 0.3 + 0.54) / 3)
    assert found["published_ratio_error_of_constant"] == pytest.approx(0.1)
