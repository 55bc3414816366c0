"""Schedules that cut each sequence into token slices: a causal layer needs only the tokens before (Li et al. 2021).

A stage can take tokens as soon as the stage before has done them, so that a pipeline fills with slices in place of
microbatches. Backward, a slice follows the later slices of its sequence, whose attention read its keys and values.
"""

from __future__ import annotations

from pathways_nb.parallel.schedules.actions import Action
from pathways_nb.parallel.schedules.closed_forms import ClosedForm
from pathways_nb.parallel.schedules.registry import register_schedule
from pathways_nb.parallel.schedules.rows import alternating, mirrored

BY_SLICES = ClosedForm(
    "(p−1)(F+B)/k", lambda s, t: (s.devices - 1) * (t.F + t.B) / s.token_slices, says="slices that take equally long"
)


@register_schedule("terapipe", bubble=BY_SLICES, peak=ClosedForm("m", lambda s, r: s.microbatches))
def terapipe(devices: int, microbatches: int, token_slices: int = 4) -> list[list[Action]]:
    """All forward passes, slice by slice, then all backward passes in reverse (TeraPipe, Li et al. 2021)."""
    return [mirrored(slices(stage, "F", microbatches, range(token_slices))) for stage in range(devices)]


@register_schedule(
    "seq1f1b",
    bubble=BY_SLICES,
    peak=ClosedForm(
        "min(mk, p−r−1+k)/k",
        lambda s, r: min(s.microbatches * s.token_slices, s.devices - r - 1 + s.token_slices) / s.token_slices,
    ),
)
def seq1f1b(devices: int, microbatches: int, token_slices: int = 4) -> list[list[Action]]:
    """1F1B of token slices, backward from the last slice of each sequence to its first (Sun et al. 2024)."""
    rows = []
    for stage in range(devices):
        forwards = slices(stage, "F", microbatches, range(token_slices))
        backwards = slices(stage, "B", microbatches, range(token_slices)[::-1])
        rows.append(alternating(forwards, backwards, ahead=devices - 1 - stage + token_slices - 1))
    return rows


def slices(stage: int, operation: str, microbatches: int, parts: range) -> list[Action]:
    """One operation of all microbatches, in order, on each one's token slices in the order of ``parts``."""
    return [Action(stage, operation, microbatch, part) for microbatch in range(microbatches) for part in parts]
