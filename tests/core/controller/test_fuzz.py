"""The command for a million random events: it counts what it handled, and reports a bug with the steps that show it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pathways_nb.controller.admission import Admission
from pathways_nb.controller.state import CallState
from tests.core.controller import fuzz


def test_it_counts_what_it_handled(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(fuzz, "EXAMPLES", 5)
    assert fuzz.main(["--events", "300", "--seed", "5"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("seed 5\n")
    counted = int(re.findall(r"([\d,]+) events in", said)[-1].replace(",", ""))
    assert counted >= 300
    events = re.search(r"\n  events: (.*)\n", said)
    assert events is not None
    assert sum(int(n.replace(",", "")) for n in re.findall(r" ([\d,]+)(?:,|$)", events[1])) == counted
    assert re.search(r"programs: [\d,]+ finished, of which [\d,]+ failed for want of memory", said)


def test_a_bug_is_told_with_its_seed_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "progressed", lambda self, run, island: None)
    finish = Admission.finish
    monkeypatch.setattr(
        Admission, "finish", lambda self, what: None if isinstance(what, CallState) else finish(self, what)
    )
    with pytest.raises(fuzz.Failed) as failed:
        fuzz.run(20_000, 3, shrink=False)
    told = str(failed.value)
    assert re.match(r"after [\d,]+ events in [\d,]+ worlds", told)
    assert "AssertionError: " in told
    assert "state.submit(" in told
    assert "state.whole()" not in told
    assert told.endswith("Again: python -m tests.core.controller.fuzz --events 1 --seed 3")
