"""The columns of the memory of a sharded step over time: levels by category, the peak and the limit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pathways_nb.errors import size
from pathways_widgets.drawing.views import Columns

CATEGORIES = ("parameters", "optimizer", "gathered", "gradients", "activations", "temporaries")
"""What memory is held for, in the order in which it is stacked."""
MEMORY_SOURCES = {
    "step_memory": ("left", "right", "base", *CATEGORIES, *(f"{name}_held" for name in CATEGORIES), "bytes"),
    "step_peak": ("x", "y", "text", "align"),
    "step_limit": ("y",),
}
_STEPS = 370
"""Steps of the memory, at most: one for every second pixel."""
_UNITS = (("GB", 1e9), ("MB", 1e6), ("KB", 1e3), ("B", 1.0))
Held = Mapping[str, np.ndarray]
"""By category, bytes from each time on."""


def memory_columns(times: np.ndarray, held: Held, end: float, limit: float) -> tuple[dict[str, Columns], float, str]:
    """Return the columns of every source, the end of the memory's axis, and its unit.

    Args:
        times: in seconds, rising.
        held: by category, bytes from each time on.
        end: of the step, in seconds.
        limit: bytes that a device has; 0 if unknown.
    """
    total = sum(held.values(), np.zeros(len(times)))
    highest = max(float(total.max(initial=0.0)), 1.0)
    unit, scale = next((unit, scale) for unit, scale in _UNITS if highest >= scale)
    # A limit far above the peak would press the levels flat.
    is_near = 0 < limit < 2 * highest
    found = {
        "step_memory": _levels(times, held, total, end, scale),
        "step_peak": _peak(times, total, end, scale, limit),
        "step_limit": {"y": [limit / scale] if is_near else []},
    }
    return found, 1.16 * max(highest, limit if is_near else 0.0) / scale, unit


def _levels(times: np.ndarray, held: Held, total: np.ndarray, end: float, scale: float) -> Columns:
    """Return stacked levels at few enough times; of many, the one of most bytes is drawn."""
    chosen = _highest(times, total, end)
    # (steps + 1,) seconds: each level lasts until the next one begins, the last until the end of the step.
    left = np.append(times[chosen[0]], end) if len(times) else np.zeros(1)
    columns: Columns = {"left": left[:-1], "right": left[1:], "base": np.zeros(len(left) - 1)}
    top = np.zeros(len(left) - 1)  # (steps,) in units: where the next category is stacked
    for name in CATEGORIES:
        level = np.asarray(held[name][chosen[1]], float)
        columns[name], columns[f"{name}_held"] = (top := top + level / scale), level
    return columns | {"bytes": total[chosen[1]]}


def _highest(times: np.ndarray, total: np.ndarray, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the first time, and of the time of most bytes, in each step of the axis."""
    if len(times) <= _STEPS:
        return np.arange(len(times)), np.arange(len(times))
    first = np.unique(np.searchsorted(times, np.linspace(0.0, end, _STEPS + 1)[:-1]).clip(max=len(times) - 1))
    parts = zip(first, [*first[1:], len(times)], strict=True)
    return first, np.array([begin + int(total[begin:stop].argmax()) for begin, stop in parts])


def _peak(times: np.ndarray, total: np.ndarray, end: float, scale: float, limit: float) -> Columns:
    """Return where the memory is highest, and what is written there."""
    if not len(total):
        return {name: [] for name in MEMORY_SOURCES["step_peak"]}
    at = int(total.argmax())
    over = f", ⚠ {size(total[at] - limit)} more than a device has" if 0 < limit < total[at] else ""
    share = times[at] / end  # text at an edge of the plot would be cut off if it were centred
    align = "left" if share < 1 / 3 else "right" if share > 2 / 3 else "center"
    return {"x": [float(times[at])], "y": [float(total[at]) / scale], "text": [f"peak {size(total[at])}{over}"],
            "align": [align]}  # fmt: skip
