"""The synthetic record that pictures are measured with."""

from __future__ import annotations

from pathways_nb.bench.display import synthetic


def test_the_synthetic_record_has_every_column_of_a_recorded_one() -> None:
    run = synthetic(100)
    assert len(run.events) == 100
    assert not any(event["why"] for event in run.events)
