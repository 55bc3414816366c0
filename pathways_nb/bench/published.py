"""Published training steps: measured, predicted by the chips' own compilers, and by one constant for each chip.

Each step is compiled for its chip (``pathways_nb.published``) and predicted with constants that were fitted without its
source, where others show them, or without the step itself; the ratio of two steps of a family without both. Compared is
the formula's FLOPs times one factor for each chip, stack and policy of recomputation, refitted likewise. All steps take
about 25 minutes on two cores when nothing is in the cache of compiled programs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean, median
from typing import Any

from pathways_datasets import published_steps
from pathways_nb.errors import PathwaysError
from pathways_nb.published.prediction import CompiledRow, compiled_steps, predict, priced
from pathways_nb.published.step_fits import FittedRows
from pathways_nb.published.step_rows import PublishedStep, row_of
from pathways_nb.util.progress import tell_reader

_APART = math.log(1.05)
"""Pairs of steps whose seconds differ by less are not ordered."""


def run() -> dict[str, Any]:
    """Return errors of seconds, ratios and memory, order kept and bands, and a table of all steps."""
    found, failed = _compiled([row_of(one) for one in published_steps()])
    table, pairs = list(_rows(found)), list(_pairs(found))
    figures = _figures(table, pairs)
    for family in dict.fromkeys(row["family"] for row in table):
        own = [row for row in table if row["family"] == family]
        figures |= {f"{name}_{family}": value for name, value in
                    _figures(own, [pair for pair in pairs if pair["family"] == family]).items()}  # fmt: skip
    return {"figures": figures, "detail": {"steps": table, "not predicted": failed}}


def _compiled(rows: Sequence[PublishedStep]) -> tuple[FittedRows, dict[str, str]]:
    """Return the steps that compile, and the reasons why others do not; two are compiled at a time."""

    def one(row: PublishedStep) -> list[CompiledRow] | str:
        try:
            steps = compiled_steps(row)
        except PathwaysError as error:
            return str(error)
        tell_reader(f"{row.id}: compiled")
        return next((step.refused for step in steps if step.refused), steps)

    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(one, rows))
    good = [(row, steps) for row, steps in zip(rows, made, strict=True) if not isinstance(steps, str)]
    failed = {row.id: reason for row, reason in zip(rows, made, strict=True) if isinstance(reason, str)}
    return FittedRows([row for row, _ in good], [steps for _, steps in good]), failed


def _rows(found: FittedRows) -> Iterator[dict[str, Any]]:
    """Yield each step: measured, predicted with its band, the constant, memory."""
    for number, row in enumerate(found.rows):
        known = found.without(number)(number)
        made = predict(row, known, found.steps[number])
        yield {
            "family": row.family, "step": row.id, "measured": row.seconds, "predicted": made.seconds, "low": made.low,
            "high": made.high, "constant": found.constant(number, number), "bytes": made.bytes, "peak": row.peak,
            "basis": made.basis,
        }  # fmt: skip


def _pairs(found: FittedRows) -> Iterator[dict[str, Any]]:
    """Yield each pair of steps of one family: their ratio measured, predicted without both, and by the constant."""
    families: dict[str, list[int]] = {}
    for number, row in enumerate(found.rows):
        families.setdefault(row.family, []).append(number)
    for family, numbers in families.items():
        for first, second in itertools.combinations(numbers, 2):
            known = found.without(first, second)
            one, other = (_log(priced(found.rows[n], found.steps[n], known(n)).ordered) for n in (first, second))
            constant = [_log(found.constant(n, first, second)) for n in (first, second)]
            measured = _log(found.rows[first].seconds) - _log(found.rows[second].seconds)
            yield {
                "family": family,
                "measured": measured,
                "predicted": one - other,
                "constant": constant[0] - constant[1],
            }


def _figures(table: Sequence[dict[str, Any]], pairs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of some steps and pairs; those that nothing was published for are left out."""
    apart = [pair for pair in pairs if abs(pair["measured"]) >= _APART]
    peaks = [row for row in table if row["peak"]]
    figures: dict[str, Callable[[], float]] = {
        "published_error": lambda: fmean(abs(_log(row["predicted"] / row["measured"])) for row in table),
        "published_error_of_constant": lambda: fmean(abs(_log(row["constant"] / row["measured"])) for row in table),
        "published_ratio_error": lambda: fmean(abs(pair["predicted"] - pair["measured"]) for pair in pairs),
        "published_ratio_error_of_constant": lambda: fmean(abs(pair["constant"] - pair["measured"]) for pair in pairs),
        "order_kept": lambda: fmean(pair["predicted"] * pair["measured"] > 0 for pair in apart),
        "memory_error": lambda: fmean(abs(_log(row["bytes"] / row["peak"])) for row in peaks),
        "inside_bands": lambda: fmean(row["low"] <= row["measured"] <= row["high"] for row in table),
        "band_width": lambda: median((row["high"] - row["low"]) / row["predicted"] for row in table),
    }
    needs = {"published_ratio_error": pairs, "published_ratio_error_of_constant": pairs, "order_kept": apart,
             "memory_error": peaks}  # fmt: skip
    return {name: make() for name, make in figures.items() if len(needs.get(name, table))}


def _log(value: float | None) -> float:
    """Return the natural logarithm."""
    return math.log(value or 1.0)
