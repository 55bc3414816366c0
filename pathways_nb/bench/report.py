"""The runner of benches: finds them, runs one, and reports machine, versions, figures and detail.

A figure is one number with a stable name; the detail is what a reader needs to trust it. The unit of a figure is a word
of its name (``first_picture_seconds``), or else in the bench's ``units``. The table has a column of units; the JSON has
names and numbers only.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import math
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from pathways_nb.compilers import kept_executables
from pathways_nb.util.host_info import machine

_HELPERS = frozenset({"against", "lab", "peers", "report", "stopwatch"})
_NUMBERS = frozenset({"over", "ratio", "speedup", "error"})
"""Words in the names of figures that have no unit, whatever else the name says."""
_UNITS = {"us": "µs", "ms": "ms", "seconds": "s", "bytes": "bytes"}
"""Units by words of a figure's name."""


def names() -> list[str]:
    """Return the names of all benches, sorted."""
    package = importlib.import_module("pathways_nb.bench")
    found = {module.name for module in pkgutil.iter_modules(package.__path__)}
    return sorted(name for name in found - _HELPERS if not name.startswith("_"))


def module_of(name: str) -> ModuleType:
    """Return the module of a bench."""
    return importlib.import_module(f"pathways_nb.bench.{name}")


def has_short_form(name: str) -> bool:
    """Return whether a bench can be run in short form."""
    return "short" in inspect.signature(module_of(name).run).parameters


def measure(name: str, short: bool = False) -> dict[str, Any]:
    """Run a bench and return its report.

    What the bench prints goes to standard error, so that standard output holds the report alone.

    Args:
        name: one of ``names()``.
        short: run it in short form: fewer sizes and rounds.

    Returns:
        ``{"bench": name, "commit": …, "machine": {…}, "figures": {name: number}, "detail": …, "units": {name: unit}}``.

    Raises:
        ValueError: a figure is not a finite number.
    """
    if kept_executables.is_used():
        # A bench compiles, and so do processes that it starts, whatever earlier runs have kept.
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        jax.config.update("jax_enable_compilation_cache", False)
    with contextlib.redirect_stdout(sys.stderr):
        result = module_of(name).run(**({"short": True} if short else {}))
    figures = {figure: float(value) for figure, value in result["figures"].items()}
    unusable = [figure for figure, value in figures.items() if not math.isfinite(value)]
    if unusable:
        raise ValueError(f"bench {name}: not a finite number: {', '.join(unusable)}; leave out what was not measured.")
    units = {figure: unit_of(figure) for figure in figures} | result.get("units", {})
    return {
        "bench": name, "commit": commit(), "machine": machine(), "figures": figures, "detail": result.get("detail"),
        "units": units,
    }  # fmt: skip


def commit() -> str | None:
    """Return the commit of this code, with ``+changes`` where files differ from it; ``None`` outside a checkout."""
    root = Path(__file__).parents[2]
    git = ["git", "-C", str(root), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes"]
    if not (root / ".git").exists():
        return None
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def unit_of(figure: str) -> str:
    """Return the unit that a figure's name tells; ``""`` for a ratio, a count, a share or a relative error."""
    words = figure.split("_")
    if _NUMBERS.intersection(words):
        return ""
    if figure.endswith("_per_second"):
        return "/s"
    return next((_UNITS[word] for word in words if word in _UNITS), "")


def as_json(report: dict[str, Any]) -> str:
    """Return a report as one JSON object on one line, without units; NumPy numbers and arrays become plain ones."""
    return json.dumps({key: value for key, value in report.items() if key != "units"}, default=_plain)


def _plain(value: Any) -> Any:
    """Return a NumPy value as plain Python.

    Raises:
        TypeError: the value is not of NumPy.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(
        f"a bench's detail holds {type(value).__name__}, which JSON cannot; use numbers, texts, lists, dicts."
    )


def as_text(report: dict[str, Any]) -> str:
    """Return a report as text: the machine in one line, a table of figures with their units, the detail below."""
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
    """Return the detail of a report as indented lines."""
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
    """Return a value with four significant digits if it is a float."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
