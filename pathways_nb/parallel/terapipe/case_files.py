"""Files of slicing problems: each case is solved from its inputs; answers that a file also has are not read.

A case has a name, a kind and sizes. Kinds: ``table`` (``grid`` as ``plan`` takes it), ``analytic`` (the parameters of
one formula) and ``measured-file`` (names of files in the format of TeraPipe's authors, in the same folder).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pathways_nb.errors import PathwaysError, UsageError
from pathways_nb.parallel.terapipe.authors_files import AuthorsFiles
from pathways_nb.parallel.terapipe.slice_planner import plan
from pathways_nb.parallel.terapipe.slicing import Slicing, short_scheme
from pathways_nb.util.json_text import DamagedError, Field, read, shortened

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
    found = _contents(path)
    cases = found.get("cases") if isinstance(found.value, dict) else found
    if not isinstance(cases.value, list) or not all(isinstance(case, dict) for case in cases.value):
        raise UsageError(f'{path}: no cases; {{"cases": [{{"name": …, "kind": …}}, …]}} is needed.')
    return [_solved(case, path.parent) for case in cases.rows()]


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


def _contents(path: Path) -> Field:
    """Return the whole of a JSON file.

    Raises:
        UsageError: it is not there, or is damaged.
    """
    try:
        return Field(read(path))
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file.") from None
    except DamagedError as error:
        raise UsageError(f"{path}: {error}.") from None


def _solved(case: Field, folder: Path) -> Solved:
    """Return the solution of one case.

    Args:
        case: its inputs.
        folder: where its files are.
    """
    # Before anything is checked: the error of a damaged case names it, too.
    name, began = case.value.get("name", "unnamed"), time.perf_counter()
    try:
        name = case["name"].text() if "name" in case.value else name
        kind = case["kind"].text()
        if kind not in _KINDS:
            raise UsageError(f"kind={shortened(kind)}: known are {', '.join(_KINDS)}.")
        answer = _KINDS[kind](case, folder)
    except (DamagedError, PathwaysError) as error:
        return {"name": name, "error": f"{error}." if isinstance(error, DamagedError) else str(error)}
    return {"name": name, **answer, "seconds": time.perf_counter() - began}


def _sizes(case: Field, length: Field) -> dict[str, int]:
    """Return the sizes of a case as arguments of ``plan``."""
    return {
        "length": length.whole(1),
        "batch": case["total_batch"].whole(1),
        "stages": case["pipeline_stages"].whole(1),
        "granularity": case["step_gap"].whole(1) if "step_gap" in case.value else 8,
    }


def _answer(slicing: Slicing, once: float = 0.0) -> Solved:
    """Return latency and scheme as JSON has them; ``once`` are seconds that are added to the latency."""
    return {
        "latency": slicing.latency + once,
        "scheme": [[size, list(tokens)] for size, tokens in slicing.scheme],
        "sum_t": slicing.sum,
        "max_t": slicing.max,
    }


def _by_table(case: Field, _: Path) -> Solved:
    return _answer(plan(_grid(case["grid"]), **_sizes(case, case["seq_len"])))


def _grid(field: Field) -> list[Any]:
    """Return a list of numbers, or of such lists."""
    if isinstance(field.value, list) and any(isinstance(one, list) for one in field.value):
        return [_grid(one) for one in field.rows()]
    return field.numbers()


def _by_formula(case: Field, _: Path) -> Solved:
    # A file may state its formula; under another one the same parameters are another problem.
    stated = case["formula"].text().partition(";")[0] if "formula" in case.value else FORMULA
    if stated.replace(" ", "") != FORMULA.replace(" ", ""):
        raise UsageError(f"formula {shortened(stated)}: the one that can be solved is {FORMULA}.")
    # A fit may give a negative constant: the seconds are checked, not the constants.
    fl, a0, a1, kappa = (case["params"][name].number(-1e300) for name in ("fl", "a0", "a1", "kappa"))

    def seconds(b: np.ndarray, s: np.ndarray, c: np.ndarray) -> np.ndarray:
        return np.maximum(fl, a0 + a1 * b * s + kappa * b * s * (s + c))

    return _answer(plan(seconds, **_sizes(case, case["seq_len"])))


def _by_files(case: Field, folder: Path) -> Solved:
    """Return the authors' optimum, and under ``"intended"`` that of a table without their peculiarities.

    Both latencies have the optimizer's time of a stage added, as the authors' has.
    """
    latencies, communication = (_contents(folder / name.text()) for name in case["files"].rows(2))
    files, layers = AuthorsFiles.read(latencies, communication), case["layers_per_stage"].whole(1)
    sizes = _sizes(case, case["model"]["seq_len"])
    made = {
        intended: plan(
            files.table(sizes["length"], sizes["batch"], layers, sizes["granularity"], intended=intended), **sizes
        )
        for intended in (False, True)
    }
    # The optimizer runs once in a step: its time is no part of a slice, and does not change the optimum.
    answers = {intended: _answer(slicing, layers * files.update) for intended, slicing in made.items()}
    return {**answers[False], "intended": answers[True]}


_KINDS: dict[str, Callable[[Field, Path], Solved]] = {
    "table": _by_table,
    "analytic": _by_formula,
    "measured-file": _by_files,
}
