"""Tables that come with the package: chips and networks, each figure with its origin."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def hardware() -> dict[str, Any]:
    """``hardware.json``: under ``"chips"`` and ``"networks"``, by name, each parameter as [value, kind, source]."""
    return json.loads(files("pathways_datasets").joinpath("hardware.json").read_text("utf-8"))
