"""What a question of the course is: a function that computes the answer, and one that finds a hint for a wrong answer.

No answer is stored, and none depends on the speed of the machine: a reader must get the same verdict everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pathways_nb.results.executed_program import ExecutedProgram
from pathways_nb.results.opened_runs import runs

TOLERANCE = 0.01
"""Relative tolerance of numbers: 1.78 is accepted for 16/9."""


@dataclass(frozen=True)
class Question:
    """A question of a notebook.

    Args:
        expected: computes the answer.
        why: returns a hint for a wrong answer, given the answer and the expected one.
    """

    expected: Callable[[], Any]
    why: Callable[[Any, Any], str]


def is_near(answer: Any, *values: float) -> bool:
    """Return whether an answer is one of some numbers, within ``TOLERANCE``: the right one, or a typical mistake."""
    return any(math.isclose(answer, value, rel_tol=TOLERANCE) for value in values)


class NotYetError(Exception):
    """The run from which an answer is computed does not exist yet."""


def program_of(run: str, name: str) -> ExecutedProgram:
    """Return the reader's own program, from the cell ``%%pathways --run RUN``; of several the newest.

    Args:
        run: name of the run.
        name: name of the program.

    Raises:
        NotYetError: there is no such program; the text names the cell to run.
    """
    found = [program for program in (runs[run].programs if run in runs else []) if program.graph.name == name]
    if not found:
        raise NotYetError(f"run the cell that begins with %%pathways and has --run {run} first: the answer is in it.")
    # A cell that was run again, or a call of another shape, made several: the last is the one the reader sees.
    return found[-1]
