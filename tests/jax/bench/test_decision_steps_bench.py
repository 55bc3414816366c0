"""The long run with which steps of the player are measured."""

from __future__ import annotations

from pathways_nb.bench._decision_steps import contested


def test_the_contested_run_keeps_all_of_its_events_and_asks_its_policy(watchdog: None) -> None:
    run = contested(900)
    assert run.log is not None
    assert (run.log.missing, len(run.log.entries) >= 900, len(run.events) >= 900) == (0, True, True)
    assert {one.rule for one in run.steps()} >= {"only", "policy"}
