"""The TeraPipe paper's results predicted: fitted on steps without TeraPipe and with equal slices, nothing else.

Fitted are the four parameters of ``published_model`` on ten steps of whole sequences (the column "without TeraPipe")
and nine of equal slices (the ablation of settings 8 and 9). Predicted are the column "with TeraPipe", whose slices
are those that ``plan`` finds, and both columns of the longer sequences. Three readings of the same data show what the
choice of model does: ``maximum`` (the result), ``sum`` (work and weights one after the other), and ``rescaled``
(maximum, with one more parameter for each setting, so that its own step without TeraPipe is exact).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any

import numpy as np

from pathways_datasets import published
from pathways_nb.parallel.terapipe.published_model import Combine, FittedParameters, Setting
from pathways_nb.parallel.terapipe.slice_planner import plan
from pathways_nb.parallel.terapipe.slicing import short_scheme

READINGS: Mapping[str, Combine] = {"maximum": np.maximum, "sum": np.add, "rescaled": np.maximum}
"""How the seconds of work and weights become one in each reading."""
SAME = ("2", "3")
"""Settings in which TeraPipe changes nothing; no part of the mean error."""


@dataclass(frozen=True)
class PublishedFit:
    """The parameters of one reading, and how well it meets what it was fitted on.

    Attributes:
        reading: one of ``READINGS``.
        parameters: of the model.
        error: mean relative error on the fitted steps.
        fitted_on: number of fitted steps.
    """

    reading: str
    parameters: FittedParameters
    error: float
    fitted_on: int

    @property
    def parameter_count(self) -> int:
        """Number of fitted parameters."""
        return len(self.parameters) + (len(_table()["settings"]) if self.reading == "rescaled" else 0)


@cache
def _table() -> dict[str, Any]:
    """Return the published results."""
    return published("terapipe")


def _fitted_steps() -> Iterator[tuple[Setting, int, float]]:
    """Yield the steps that may be fitted: setting, number of equal slices, published seconds."""
    settings = _table()["settings"]
    for entry in settings.values():
        yield Setting.of(entry), 1, entry["without"]["value"]
    for name, series in _table()["uniform slices"].items():
        for count, seconds in series.items():
            if count != "1":  # the same step as without TeraPipe
                # Two settings, 8 and 9, of which the paper has equal slices (its ablation).
                yield Setting.of(settings[name]), int(count), seconds["value"]


@cache
def fitted(reading: str = "maximum") -> PublishedFit:
    """Return the parameters with the least sum of squared logarithms of errors on the fitted steps.

    Args:
        reading: one of ``READINGS``.
    """
    from scipy.optimize import least_squares  # late: only this needs it

    steps, combine = list(_fitted_steps()), READINGS[reading]

    def errors(logarithms: np.ndarray) -> np.ndarray:
        parameters = FittedParameters(*np.exp(logarithms))
        return np.array([np.log(one.uniform(parameters, count, combine) / seconds) for one, count, seconds in steps])

    # Logarithms of both: parameters stay positive, and a short step counts as much as a long one.
    found = least_squares(errors, np.log(FittedParameters()))
    error = float(np.abs(np.expm1(found.fun)).mean())
    return PublishedFit(reading, FittedParameters(*map(float, np.exp(found.x))), error, len(steps))


def predicted(entry: Mapping[str, Any], reading: str = "maximum") -> dict[str, Any]:
    """Return a row with published and predicted seconds of one setting.

    Args:
        entry: of the table of published results.
        reading: one of ``READINGS``.
    """
    setting, fit, combine = Setting.of(entry), fitted(reading), READINGS[reading]
    seconds, once = setting.seconds(fit.parameters, combine), setting.once(fit.parameters)
    without = setting.uniform(fit.parameters, combine=combine)
    # The average of gradients among replicas is no part of the slices and is not scaled.
    scale = (entry["without"]["value"] - once) / (without - once) if reading == "rescaled" else 1.0
    found = plan(
        lambda *size: scale * seconds(*size), length=setting.length, batch=setting.batch, stages=setting.stages
    )
    row = {
        "model": entry["model"],
        "without": entry["without"]["value"],
        "without_predicted": once + scale * (without - once),
        "with": entry["with"]["value"],
        "with_predicted": once + found.latency,
        "recalled": "recalled" in (entry["without"]["tag"], entry["with"]["tag"]),
        "slices_found": short_scheme(found.scheme),
    }
    row["error"] = row["with_predicted"] / row["with"] - 1
    row["speedup"], row["speedup_predicted"] = (row[f"without{x}"] / row[f"with{x}"] for x in ("", "_predicted"))
    return row | _published_slices(entry, setting, once, scale, fit, combine)


def _published_slices(
    entry: Mapping[str, Any], setting: Setting, once: float, scale: float, fit: PublishedFit, combine: Combine
) -> dict[str, Any]:
    """Return the published slices of a setting, and the seconds that the model predicts for them."""
    slices = entry["slices"]["value"]
    if slices is None:
        return {"slices_published": "unknown"}
    seconds = setting.step(slices, fit.parameters, combine)
    written = short_scheme(((1, tuple(slices)),) * setting.batch)
    return {"slices_published": written, "published_slices_predicted": once + scale * (seconds - once)}


def settings(reading: str = "maximum") -> list[dict[str, Any]]:
    """Return the rows of the ten settings; see ``predicted``."""
    return [{"setting": name} | predicted(entry, reading) for name, entry in _table()["settings"].items()]


def mean_error(rows: list[dict[str, Any]]) -> float:
    """Return the mean relative error of the step with TeraPipe, over the settings in which it changes something."""
    return fmean(abs(row["error"]) for row in rows if row["setting"] not in SAME)


def longer_sequences(reading: str = "maximum") -> list[dict[str, Any]]:
    """Return the rows of 13B with longer sequences, both columns predicted; see ``predicted``."""
    return [{"tokens": name} | predicted(entry, reading) for name, entry in _table()["longer sequences"].items()]


def ablation(reading: str = "maximum") -> list[dict[str, Any]]:
    """Return rows of equal slices (fitted) and of the optimum (predicted), for settings 8 and 9."""
    fit, combine, rows = fitted(reading), READINGS[reading], []
    for name, series in _table()["uniform slices"].items():
        entry = _table()["settings"][name]
        setting = Setting.of(entry)
        for count, seconds in series.items():
            predicted_seconds = setting.uniform(fit.parameters, int(count), combine)
            rows.append(_point(name, f"{count} equal", "fitted", seconds["value"], predicted_seconds))
        best = predicted(entry, reading)
        rows.append(_point(name, "optimum", "predicted", best["with"], best["with_predicted"]))
    return rows


def _point(setting: str, slices: str, role: str, seconds: float, predicted_seconds: float) -> dict[str, Any]:
    """Return a row of the ablation."""
    return {
        "setting": setting,
        "slices": slices,
        "declared": role,
        "paper": seconds,
        "ours": predicted_seconds,
        "error": predicted_seconds / seconds - 1,
    }
