"""Finds the benches, runs one, and says where: the machine, the versions, the figures, the detail.

A figure is one number with a stable name; the detail is whatever a reader needs to trust it. Its unit is a word of its
name (``first_picture_seconds``), or, where that names something else, what the bench says in ``units``; the table has
it as a column, the JSON has names and numbers.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import pkgutil
import sys
from typing import Any

from pathways_nb.util.host_info import machine

_HELPERS = frozenset({"report", "stopwatch", "explorer", "lab", "peers"})
_NUMBERS = frozenset({"over", "ratio", "speedup", "error"})
"""Words of what has no unit, whatever else the name holds."""
_UNITS = {"us": "µs", "ms": "ms", "seconds": "s", "bytes": "bytes"}
"""By words of a figure's name."""


def names() -> list[str]:
    """The benches there are, by name."""
    package = importlib.import_module("pathways_nb.bench")
    found = {module.name for module in pkgutil.iter_modules(package.__path__)}
    return sorted(name for name in found - _HELPERS if not name.startswith("_"))


def measure(name: str) -> dict[str, Any]:
    """Run the bench ``name`` of ``names()``; what it prints goes to standard error, so that the report stands alone.

    Returns:
        ``{"bench": name, "machine": {...}, "figures": {name: number}, "detail": ..., "units": {name: unit}}``.

    Raises:
        ValueError: a figure is not a finite number.
    """
    module = importlib.import_module(f"pathways_nb.bench.{name}")
    with contextlib.redirect_stdout(sys.stderr):
        result = module.run()
    figures = {figure: float(value) for figure, value in result["figures"].items()}
    unusable = [figure for figure, value in figures.items() if not math.isfinite(value)]
    if unusable:
        raise ValueError(f"bench {name}: not a finite number: {', '.join(unusable)}; leave out what was not measured.")
    units = {figure: unit_of(figure) for figure in figures} | result.get("units", {})
    return {"bench": name, "machine": machine(), "figures": figures, "detail": result.get("detail"), "units": units}


def unit_of(figure: str) -> str:
    """The unit that a figure's name tells; ``""`` of a ratio, a count, a share or a relative error."""
    words = figure.split("_")
    if _NUMBERS.intersection(words):
        return ""
    if figure.endswith("_per_second"):
        return "/s"
    return next((_UNITS[word] for word in words if word in _UNITS), "")


def as_json(report: dict[str, Any]) -> str:
    """One JSON object on one line, without units; NumPy numbers and arrays in the detail become plain ones."""
    return json.dumps({key: value for key, value in report.items() if key != "units"}, default=_plain)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(
        f"a bench's detail holds {type(value).__name__}, which JSON cannot; use numbers, texts, lists, dicts."
    )


def as_text(report: dict[str, Any]) -> str:
    """The same for a person: the machine in a line, a table of figures with their units, the detail below."""
    where = report["machine"]
    width = max(map(len, report["figures"]), default=0)
    return "\n".join(
        [
            f"bench {report['bench']}: {where['cores']} cores, {where['memory_bytes'] / 2**30:.1f} GiB, "
            f"Python {where['python']}, JAX {where['jax']} (jaxlib {where['jaxlib']}), {where['platform']}",
            *(f"  {n:<{width}}  {v:>12.4g} {report['units'][n]}".rstrip() for n, v in report["figures"].items()),
            *_detail_lines(report["detail"], "  "),
        ]
    )


def _detail_lines(detail: Any, indent: str) -> list[str]:
    if detail is None:
        return []
    if isinstance(detail, dict):
        lines = []
        for key, value in detail.items():
            nested = isinstance(value, (dict, list))
            lines += (
                [f"{indent}{key}:", *_detail_lines(value, indent + "  ")] if nested else [f"{indent}{key}: {value}"]
            )
        return lines
    if isinstance(detail, list) and all(isinstance(row, dict) for row in detail):
        return [indent + "  ".join(f"{key} {_short(value)}" for key, value in row.items()) for row in detail]
    return [indent + line for line in str(detail).splitlines()]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
