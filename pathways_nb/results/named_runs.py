"""Runs by name, and how the user calls a run in Python."""

from __future__ import annotations

import json
from typing import Any

from pathways_nb.errors import UsageError
from pathways_nb.util.displaying import ipython_shell


class NamedRuns(dict[str, Any]):
    """The runs by name; an unknown name is an error that lists the known ones."""

    def __missing__(self, name: str) -> Any:
        known = ", ".join(map(repr, self)) or "none yet"
        raise UsageError(f"pw.runs[{name!r}]: there is no run of that name. Known: {known}; see %%pathways --run NAME.")


named_runs = NamedRuns()
"""What ``pw.runs`` is."""


def expression_of(run: Any) -> str:
    """Return how a cell of the notebook calls a run: a variable, ``pw.runs["name"]``, or ``run`` if it has neither."""
    variables = list(getattr(ipython_shell(), "user_ns", {}).items())
    # The newest variable: an older one may be left from cells that are gone.
    named = [name for name, value in reversed(variables) if value is run and not name.startswith("_")]
    named += [f"pw.runs[{json.dumps(name, ensure_ascii=False)}]" for name, other in named_runs.items() if other is run]
    return named[0] if named else "run"
