"""The Pathways paper's Figures 5 to 12 and Table 2, simulated through the controller, with what fits and what fails.

What is fitted on which numbers and what is predicted is declared before anything runs (``_paper.declared``). The table
has the paper's number, ours, the error and the simplest formula beside it; numbers that were not checked against the
paper say "recalled". Time is virtual: only the duration of the bench itself depends on this machine.

The simplest formula is the baseline, and the report has the mean error of both, so that a reader sees what the
simulation adds to arithmetic.
"""

from __future__ import annotations

import re
from statistics import mean
from typing import Any

from pathways_nb.bench._paper import clients, dispatch_rates, staged_decoder, two_islands
from pathways_nb.bench._paper.declared import FITS, POINTS, TablePoint
from pathways_nb.bench._paper.found import Found
from pathways_nb.bench._paper.pods import PAPER

_ABOUT = {
    "figure 5": "A call costs the same whatever its program holds; JAX is the same without a cost for each host.",
    "figure 6": "Two parameters on two points, which are two kinds of machine: that it fits proves nothing.",
    "whose cost": "A call's cost is taken as its client's own. As a cost of the controller, which all clients share, "
    "it fits figures 5 and 6 just as well, and leaves figure 11 at 0.14 for any number of clients. Figure 7, where "
    "each message of sequential dispatch pays it again, is run with it at the controller.",
    "figures 7 to 9": "What the controller does by construction, given the fit: these test code, not the model.",
    "figure 12": "How long a step took is not published, so what is given is the shortest one that 97 % allows.",
    "figure 12, share": "The batch is assumed. A step of seconds hides all that Table 2's rates say it sends: what the "
    "paper loses beyond that is not in this model.",
    "table 2": "The pipelines' rows cannot tell what SPMD over 128 cores costs: both fits miss it by over a tenth.",
}
"""Remarks on figures, printed with the table."""
_READ = {"abstract": "in the abstract", "notes": "in public notes", "recalled": "recalled"}
"""How a number of the paper was read, by the tag in the table of published numbers."""
TOLERATED = 0.1
"""Relative error beyond which a prediction fails; published step-time errors of simulators are 3 to 9 %."""
_RELATIVE = ("fitted", "predicted")
"""Roles of points whose error is relative to a number of the paper."""
_UNITS = {"figure 9": "", "figure 12": "s"}
"""Units of our number where it is not the paper's: the error of the worst share, the seconds of a step."""


def table() -> list[dict[str, Any]]:
    """Return a row for each declared point, in that order; unknown values are left out of a row."""
    found = simulate()
    return [_row(point, found[point.figure][point.name]) for point in POINTS]


def simulate() -> dict[str, dict[str, Found]]:
    """Return the results of all simulations, by figure and by name of the point."""
    work = staged_decoder.fit_work()
    return {
        "figure 5": dispatch_rates.figure_5(),
        "figure 6": dispatch_rates.figure_6(),
        "figure 7": dispatch_rates.figure_7(),
        "figure 8": clients.figure_8(),
        "figure 9": clients.figure_9(),
        "figure 10": staged_decoder.figure_10(work),
        "figure 11": clients.figure_11(),
        "figure 12": two_islands.figure_12(),
        "figure 12, share": two_islands.figure_12_share(work),
        "table 2": staged_decoder.table_2(work),
        "table 2, with width": staged_decoder.table_2(staged_decoder.fit_work_and_width()),
    }


def _row(point: TablePoint, found: Found) -> dict[str, Any]:
    """Return the row of one point.

    Args:
        point: as declared.
        found: as simulated.
    """
    row: dict[str, Any] = {"of": point.figure, "point": point.name, "declared": point.role, "ours": found.simulated}
    if point.role in _RELATIVE:
        known = PAPER[point.figure.partition(",")[0]][point.name]
        row |= {"paper": known["value"], "read": _READ[known["tag"]], "error": found.simulated / known["value"] - 1}
    if point.role == "predicted":
        row["verdict"] = "holds" if abs(row["error"]) <= TOLERATED else "FAILS"
    if found.baseline is not None:
        row["baseline"] = found.baseline
        if point.role in _RELATIVE:
            row["baseline_error"] = found.baseline / row["paper"] - 1
    return row | ({"says": found.says} if found.says else {})


def figures_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return our number and error for each point, the number of fitted and predicted points, and the mean errors."""
    figures: dict[str, float] = {}
    for row in rows:
        name = _name(row["of"], row["point"])
        figures[name] = row["ours"]
        if "error" in row:
            figures[f"{name}_error"] = row["error"]
    predicted = [row for row in rows if row["declared"] == "predicted"]
    return figures | {
        "fitted_parameters": sum(len(fit.parameters) for fit in FITS),
        "fitted_points": sum(row["declared"] == "fitted" for row in rows),
        "predicted_points": len(predicted),
        "predictions_that_fail": sum(row["verdict"] == "FAILS" for row in predicted),
        "mean_predicted_error": mean(abs(row["error"]) for row in predicted),
        "mean_baseline_error": mean(abs(row["baseline_error"]) for row in predicted),
    }


def _name(figure: str, point: str) -> str:
    """Return the stable name of a point's figure."""
    return re.sub(r"\W+", "_", f"{figure} {point}").lower()


def units() -> dict[str, str]:
    """Return the unit of each point's number whose name does not tell it: the paper's unit, where there is one."""
    found = {}
    for point in POINTS:
        figure = point.figure.partition(",")[0]
        known = PAPER[figure].get(point.name, {}).get("unit")
        if (unit := _UNITS.get(point.figure, known)) is not None:
            found[_name(point.figure, point.name)] = unit
    return found


def run() -> dict[str, Any]:
    """Return our number, the paper's and the simplest formula's for every point."""
    rows = table()
    fits = [
        {"fit": fit.name, "parameters": " and ".join(fit.parameters), "on": "; ".join(map(": ".join, fit.points)),
         "degrees_of_freedom": fit.freedom} for fit in FITS
    ]  # fmt: skip
    detail = {"declared fits": fits, "points": rows, "remarks": _ABOUT}
    return {"figures": figures_of(rows), "detail": detail, "units": units()}
