"""Schedules that cut each sequence into token slices: TeraPipe (Li et al. 2021) and Seq1F1B (Sun et al. 2024).

A causal layer needs only the tokens before, so a stage can take tokens as soon as the stage before has done them, and a
pipeline fills with slices in place of microbatches. Backward, a slice follows the later slices of its sequence, whose
attention read its keys and values (TeraPipe, section 3).

Slices are taken to last equally long in the closed forms. Which lengths do that is another question (TeraPipe's dynamic
program) and not answered by these generators, which only order slices.
"""

from __future__ import annotations

from pathways_nb.parallel.schedules.actions import Action
from pathways_nb.parallel.schedules.closed_forms import ClosedForm
from pathways_nb.parallel.schedules.registry import register_schedule
from pathways_nb.parallel.schedules.row_building import alternating, mirrored

BY_SLICES = ClosedForm(
    "(p−1)(F+B)/k", lambda s, t: (s.devices - 1) * (t.F + t.B) / s.token_slices, says="slices that take equally long"
)


@register_schedule("terapipe", bubble=BY_SLICES, peak=ClosedForm("m", lambda s, r: s.microbatches))
def terapipe(devices: int, microbatches: int, token_slices: int = 4) -> list[list[Action]]:
    """Run all forward passes, slice by slice, then all backward passes in reverse (TeraPipe, Li et al. 2021).

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m.
        token_slices: slices of each sequence, k.

    Returns:
        The actions of each device, in order.
    """
    # In reverse, the last slice of a sequence comes first, whose gradients by keys and values the others need.
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
    """Run 1F1B on token slices, backward from the last slice of each sequence to its first (Sun et al. 2024).

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m.
        token_slices: slices of each sequence, k.

    Returns:
        The actions of each device, in order.
    """
    rows = []
    for stage in range(devices):
        forwards = slices(stage, "F", microbatches, range(token_slices))
        backwards = slices(stage, "B", microbatches, range(token_slices)[::-1])
        # The first backward pass is that of the last slice, so k − 1 more forward passes than in 1F1B precede it.
        rows.append(alternating(forwards, backwards, ahead=devices - 1 - stage + token_slices - 1))
    return rows


def slices(stage: int, operation: str, microbatches: int, parts: range) -> list[Action]:
    """Return one operation on all microbatches in order, and on the token slices of each.

    Args:
        stage: of the model.
        operation: F or B.
        microbatches: number of microbatches, m.
        parts: token slices, in the order in which they are taken.
    """
    return [Action(stage, operation, microbatch, part) for microbatch in range(microbatches) for part in parts]
