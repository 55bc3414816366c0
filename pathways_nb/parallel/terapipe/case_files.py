"""Files of slicing problems: each case is solved from its inputs; answers that a file also has are not read.

A case has a name, a kind and sizes. Kinds: ``table`` (``grid`` as ``plan`` takes it), ``analytic`` (the parameters of
one formula) and ``measured-file`` (names of files in the format of TeraPipe's authors, beside the file of cases).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pathways_nb.errors import PathwaysError, UsageError
from pathways_nb.parallel.terapipe.authors_files import AuthorsFiles
from pathways_nb.parallel.terapipe.planner import plan
from pathways_nb.parallel.terapipe.slicing import Slicing, short_scheme
from pathways_nb.util.json_text import DamagedError, read, shortened

Solved = dict[str, Any]
"""Name, latency, scheme and seconds of one case; or its name and the error."""
FORMULA = "t(b,s,c) = max(fl, a0 + a1*b*s + kappa*b*s*(s+c))"
"""The formula of all analytic cases; s and c in tokens."""


def solve_file(path: Path) -> list[Solved]:
    """Return the solutions of all cases of a file, in its order; a case that cannot be solved has its error.

    Args:
        path: of a JSON file ``{"cases": [{"name": …, "kind": …, …}, …]}``.

    Raises:
        UsageError: the file cannot be read, or has no cases.
    """
    cases = _contents(path)
    cases = cases.get("cases") if isinstance(cases, dict) else cases
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise UsageError(f'{path}: no cases; {{"cases": [{{"name": …, "kind": …}}, …]}} is needed.')
    return [_solved(case, path.parent) for case in cases]


def as_lines(solved: list[Solved]) -> Iterator[str]:
    """Yield a line for each solution."""
    width = max((len(str(one["name"])) for one in solved), default=0)
    for one in solved:
        name = str(one["name"]).ljust(width)
        if "error" in one:
            yield f"{name}  error: {one['error']}"
        else:
            scheme = short_scheme(tuple((size, tuple(tokens)) for size, tokens in one["scheme"]))
            yield f"{name}  {one['latency']:.9g} s  found in {one['seconds']:.3f} s  {scheme}"


def _contents(path: Path) -> Any:
    """Return the Python values of a JSON file.

    Raises:
        UsageError: it is not there, or is damaged.
    """
    try:
        return read(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file.") from None
    except DamagedError as error:
        raise UsageError(f"{path}: {error}.") from None


def _solved(case: Mapping[str, Any], folder: Path) -> Solved:
    """Return the solution of one case.

    Args:
        case: its inputs.
        folder: where its files are.
    """
    name, began = case.get("name", "unnamed"), time.perf_counter()
    try:
        solve = _KINDS.get(case["kind"])
        if solve is None:
            raise UsageError(f"kind={shortened(case['kind'])}: known are {', '.join(_KINDS)}.")
        answer = solve(case, folder)
    except KeyError as error:
        return {"name": name, "error": f"the case has no {error}."}
    except (PathwaysError, ValueError, TypeError, AttributeError, IndexError) as error:
        return {"name": name, "error": str(error)}
    return {"name": name, **answer, "seconds": time.perf_counter() - began}


def _sizes(case: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Return the sizes of a case as arguments of ``plan``."""
    return {
        "length": length,
        "batch": case["total_batch"],
        "stages": case["pipeline_stages"],
        "granularity": case.get("step_gap", 8),
    }


def _answer(slicing: Slicing, once: float = 0.0) -> Solved:
    """Return latency and scheme as JSON has them; ``once`` are seconds that are added to the latency."""
    return {
        "latency": slicing.latency + once,
        "scheme": [[size, list(tokens)] for size, tokens in slicing.scheme],
        "sum_t": slicing.sum,
        "max_t": slicing.max,
    }


def _by_table(case: Mapping[str, Any], _: Path) -> Solved:
    return _answer(plan(case["grid"], **_sizes(case, case["seq_len"])))


def _by_formula(case: Mapping[str, Any], _: Path) -> Solved:
    stated = str(case.get("formula", FORMULA)).partition(";")[0]
    if stated.replace(" ", "") != FORMULA.replace(" ", ""):
        raise UsageError(f"formula {shortened(stated)}: the one that can be solved is {FORMULA}.")
    fl, a0, a1, kappa = (float(case["params"][name]) for name in ("fl", "a0", "a1", "kappa"))

    def seconds(b: np.ndarray, s: np.ndarray, c: np.ndarray) -> np.ndarray:
        return np.maximum(fl, a0 + a1 * b * s + kappa * b * s * (s + c))

    return _answer(plan(seconds, **_sizes(case, case["seq_len"])))


def _by_files(case: Mapping[str, Any], folder: Path) -> Solved:
    """Return the authors' optimum, and under ``"intended"`` that of a table without their peculiarities.

    Both latencies have the optimizer's time of a stage added, as the authors' has.
    """
    latencies, communication = (_contents(folder / name) for name in case["files"])
    files, layers = AuthorsFiles(latencies, communication), case["layers_per_stage"]
    sizes = _sizes(case, case["model"]["seq_len"])
    made = {
        intended: plan(
            files.table(sizes["length"], sizes["batch"], layers, sizes["granularity"], intended=intended), **sizes
        )
        for intended in (False, True)
    }
    answers = {intended: _answer(slicing, layers * files.update) for intended, slicing in made.items()}
    return {**answers[False], "intended": answers[True]}


_KINDS: dict[str, Callable[[Mapping[str, Any], Path], Solved]] = {
    "table": _by_table,
    "analytic": _by_formula,
    "measured-file": _by_files,
}
