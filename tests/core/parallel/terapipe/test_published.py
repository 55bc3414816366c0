"""The paper's results are predicted from what was fitted, and nothing that is predicted is fitted."""

from __future__ import annotations

import copy

import pytest

from pathways_datasets import published as table
from pathways_nb.parallel.terapipe import published_steps as published
from pathways_nb.parallel.terapipe.published_model import FittedParameters, Setting


@pytest.fixture(autouse=True)
def fitted_anew():
    """No fit of a changed table is kept."""
    yield
    published.fitted.cache_clear()


def test_the_published_slices_sum_to_their_lengths():
    entries = [*table("terapipe")["settings"].values(), *table("terapipe")["longer sequences"].values()]
    assert len(entries) == 13
    for entry in entries:
        assert entry["slices"]["value"] is None or sum(entry["slices"]["value"]) == entry["length"]
        assert entry["data"] * entry["stages"] * entry["op"] == entry["gpus"]


def test_four_parameters_on_nineteen_steps():
    fit = published.fitted()
    assert (fit.parameter_count, fit.fitted_on) == (4, 19)
    assert fit.error < 0.1
    assert fit.error < published.fitted("sum").error, "the reading that meets the fitted steps better is the result"
    assert published.fitted("rescaled").parameter_count == 14


def test_what_is_predicted_is_not_fitted(monkeypatch):
    before, changed = published.fitted(), copy.deepcopy(table("terapipe"))
    for entry in [*changed["settings"].values(), *changed["longer sequences"].values()]:
        entry["with"]["value"] *= 3
        entry["slices"]["value"] = None
    monkeypatch.setattr(published, "_table", lambda: changed)
    published.fitted.cache_clear()
    assert published.fitted() == before


@pytest.mark.parametrize(("number", "within"), [("9", 0.1), ("10", 0.05)])
def test_175b_is_predicted(number, within):
    row = published.predicted(table("terapipe")["settings"][number])
    assert abs(row["error"]) < within
    assert row["speedup_predicted"] == pytest.approx(row["speedup"], rel=0.05)
    assert row["with_predicted"] <= row["published_slices_predicted"]


def test_the_longest_sequences_are_predicted():
    row = published.predicted(table("terapipe")["longer sequences"]["6144"])
    assert row["speedup_predicted"] == pytest.approx(4.97, rel=0.1)
    assert row["slices_published"] == "unknown"


def test_rescaled_meets_its_own_step_without_terapipe():
    row = published.predicted(table("terapipe")["settings"]["10"], "rescaled")
    assert row["without_predicted"] == pytest.approx(row["without"], rel=1e-12)


def test_replicas_average_their_gradients_once():
    sizes = {"layers": 40, "hidden": 5120, "length": 2048, "batch": 16, "stages": 20, "op": 8}
    alone, two = Setting(**sizes, data=1), Setting(**sizes, data=2)
    assert alone.once(FittedParameters()) == 0
    assert two.uniform(FittedParameters()) == pytest.approx(
        alone.uniform(FittedParameters()) + two.once(FittedParameters())
    )
