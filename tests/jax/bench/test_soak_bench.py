"""A small soak: users that come and go, faults, cancels, little memory; all is right or explained, nothing is left."""

from __future__ import annotations

import numpy as np

import pathways_nb as pw
from pathways_nb.bench import soak
from pathways_nb.bench._users import UserPopulation
from tests.support.waiting import LIMIT


def test_four_hundred_programs_of_eight_users_end_right_or_explained(watchdog: None, monkeypatch) -> None:
    for name in ("PATIENCE", "SETTLING"):
        monkeypatch.setattr(soak, name, LIMIT)
    report = soak.soak(400)
    figures = report["figures"]
    assert report["detail"]["unexplained"] == "none"
    assert figures["unexplained"] == 0
    assert {name: figures[name] for name in soak.LEFT} == dict.fromkeys(soak.LEFT, 0)
    assert figures["programs"] == 400
    assert figures["right"] > 100
    assert figures["failed"] > 10
    assert {row["policy"] for row in report["detail"]["outcomes"]} == {
        "stride",
        "fifo",
        "priority",
        "shortest",
        "latest",
    }


def test_a_wrong_value_and_an_unknown_error_are_not_explained() -> None:
    """A soak that explains everything would prove nothing."""
    users = UserPopulation((), 0)
    users.sort(pw.CancelledError("f of p, run 3, was cancelled before it was dispatched. Call it again."))
    users.sort(pw.NodeError("f of p, run 3, failed on left (island 0, devices 0–3): ValueError: no"))
    users.sort(pw.LostError("f was held on devices that have been let go (attached again, reset or closed)."))
    users.sort(AssertionError("wrong"))
    assert users.outcomes == {"cancelled": 1}
    assert [line.partition(":")[0] for line in users.unexplained] == [
        "NodeError",
        "LostError",
        "AssertionError",
    ]


def test_what_is_left_is_counted(controller: pw.Controller, left: pw.VirtualSlice, monkeypatch) -> None:
    kept = pw.put(np.zeros(8, np.float32), on=left)
    monkeypatch.setattr(soak, "SETTLING", 0.05)
    found = soak._left(controller)
    assert found.pop("arrays_left") >= 1
    assert found == {"bytes_left": 4 * 32, "buffers_left": 2, "runs_left": 0}
    del kept
    assert not any(soak._left(controller).values())
