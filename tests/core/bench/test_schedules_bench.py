"""The schedules' bench in small: its figures, and the floor beside the times."""

from __future__ import annotations

import math

import pytest

import pathways_nb as pw
from pathways_nb.bench import schedules


def test_every_figure_has_its_name_and_the_largest_size_is_the_short_form(monkeypatch) -> None:
    monkeypatch.setattr(schedules, "SIZES", ((2, 4), (4, 8)))
    monkeypatch.setattr(schedules, "ROUNDS", 1)
    monkeypatch.setattr(schedules, "LARGE", ("zb-h1", 2, 6))
    full, short = schedules.run(), schedules.run(short=True)
    assert list(full["detail"]) == ["2x4", "4x8"]
    assert list(short["detail"]) == ["4x8"]
    assert (
        set(full["figures"])
        == set(short["figures"])
        == {"refuse_seconds_300k", "generation_over_listing_worst"}
        | {f"{what}_{unit}_16x128_worst" for what in ("generation", "evaluation") for unit in ("ms", "over_text")}
    )
    assert all(math.isfinite(value) for value in full["figures"].values())
    row = next(row for row in full["detail"]["2x4"] if row["schedule"] == "gpipe")
    assert row["makespan"] == row["closed_form"] == pytest.approx(3 * 4 + 3 * 1)


def test_the_schedule_that_is_refused_has_300_000_actions() -> None:
    name, devices, microbatches = schedules.LARGE
    assert len(pw.schedule(name, devices, 1).text.split()) * microbatches == 300_000


def test_the_floor_writes_as_many_actions() -> None:
    assert schedules._text(3) == ["0F0", "1F1", "2F2"]
