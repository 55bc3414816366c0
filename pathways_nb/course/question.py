"""What a question of the course is. No answer is stored, and none depends on how fast this machine is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pathways_nb.results.executed_program import ExecutedProgram
from pathways_nb.results.run import runs

TOLERANCE = 0.01
"""Relative: 1.78 is an answer to 16/9."""


@dataclass(frozen=True)
class Question:
    """``expected`` computes the answer; ``why`` says of a wrong one what it may have got wrong."""

    expected: Callable[[], Any]
    why: Callable[[Any, Any], str]


class NotYetError(Exception):
    """The run that an answer is computed from is not there."""


def program_of(run: str, name: str) -> ExecutedProgram:
    """The reader's own program, from the cell ``%%pathways --run RUN``."""
    found = [program for program in (runs[run].programs if run in runs else []) if program.graph.name == name]
    if not found:
        raise NotYetError(f"run the cell that begins with %%pathways and has --run {run} first: the answer is in it.")
    return found[-1]
