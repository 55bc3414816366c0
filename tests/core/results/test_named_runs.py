"""How the user calls a run: "copy this view" writes it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pathways_nb.results import named_runs
from pathways_nb.results.run import Run


def test_a_run_is_called_by_its_newest_variable_else_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    run, shell = Run("train", (1,)), SimpleNamespace(user_ns={})
    monkeypatch.setattr(named_runs, "ipython_shell", lambda: shell)
    assert named_runs.expression_of(run) == "run"
    monkeypatch.setitem(named_runs.named_runs, 'my "run"', run)
    assert named_runs.expression_of(run) == 'pw.runs["my \\"run\\""]'
    shell.user_ns |= {"old": run, "other": 3, "new": run, "_5": run}
    assert named_runs.expression_of(run) == "new"
