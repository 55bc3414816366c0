"""Adopted steps in a sweep: the same step on other chips, meshes and compiler options, and the columns of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pathways_nb.adopt.adopted_step import AdoptedStep
from pathways_nb.adopt.step_answers import StepAnswers
from pathways_nb.errors import UsageError


def elsewhere(step: AdoptedStep, axes: Mapping[str, Iterable[Any]]) -> Callable[..., AdoptedStep]:
    """Return a function that gives a step elsewhere.

    Raises:
        UsageError: a step has no such axis.
    """
    known = ("chip", "mesh", "options")
    if unknown := [name for name in axes if name not in known]:
        raise UsageError(
            f"sweep({unknown[0]}=…): an adopted step goes to another {', '.join(known)}; for anything else give a "
            f"function that returns an adopted step: pw.sweep(lambda batch: pw.adopt(…), batch=[8, 16])."
        )
    return step.on


def step_columns(step: StepAnswers, error: str) -> dict[str, Any]:
    """Return the figures of a step: seconds and bytes; of one that does not fit no seconds, and by how much.

    Args:
        step: an adopted one.
        error: name of the column that says why a step has no seconds.
    """
    memory, band = step.memory(), step.band
    columns = {
        "devices": step.devices, "seconds": band.seconds, "low": band.low, "high": band.high,
        "exposed": step.collectives().exposed, "peak_bytes": memory.peak,
    }  # fmt: skip
    if memory.fits:
        return columns
    return {**columns, "seconds": None, "low": None, "high": None, "exposed": None, error: memory.shortage}
