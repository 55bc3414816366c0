"""Tables that come with the package: chips and networks, what papers report; each figure with its origin."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def hardware() -> dict[str, Any]:
    """``hardware.json``: under ``"chips"`` and ``"networks"``, by name, each parameter as [value, kind, source]."""
    return json.loads(files("pathways_datasets").joinpath("hardware.json").read_text("utf-8"))


def published(paper: str) -> dict[str, Any]:
    """What a paper reports, by figure and name: a value in SI units, its unit, what it says, and how it was read.

    The tag ``"recalled"`` marks what was not checked against the paper; whoever prints it says so.

    Args:
        paper: ``"pathways"``.

    Raises:
        ValueError: there is no such table.
    """
    found = files("pathways_datasets").joinpath(f"published_{paper}.json")
    if not found.is_file():
        here = sorted(entry.name for entry in files("pathways_datasets").iterdir())
        known = [name[len("published_") : -len(".json")] for name in here if name.startswith("published_")]
        raise ValueError(f"published({paper!r}): there is no such table; there is {', '.join(map(repr, known))}.")
    return json.loads(found.read_text("utf-8"))
