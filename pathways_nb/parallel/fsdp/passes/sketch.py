"""Carries out the edits of a pass on the few numbers from which a search adds up the time of a plan.

A sketch has the collectives of a step with what they cost, and their places between stretches of computation. Where the
graph has a list of operations, it has positions: that of an operation is ``(number, ∞)``, that of what moves in front
of a position ``p + (∞,)`` is ``p + (count, ∞)``, and that of what stands directly behind it ``p + (∞, 1, ∞)``. So any
number of moves fits between two operations, and nothing is numbered again.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pathways_nb.parallel.fsdp.passes.edits import Edit, Gather, Kind, Position, Reduction, StepCollectives

INF = math.inf


def position_of(number: int) -> Position:
    """Return the position of an operation by its number in the list."""
    return float(number), INF


class GatherCost(NamedTuple):
    """What a gather costs.

    Args:
        convert_ticks: of the conversions in front of it.
        shard_bytes: what a device sends.
        whole_bytes: what it makes, with padding.
    """

    convert_ticks: int
    shard_bytes: int
    whole_bytes: int


class ReductionCost(NamedTuple):
    """What a reduction costs.

    Args:
        whole_bytes: of the gradient without padding.
        padded_bytes: of the gradient as it is exchanged.
        shard_bytes: of what each device keeps.
        finish_ticks: of what completes it.
        finish_ops: number of those operations; without one, nothing waits for it but the end of the step.
    """

    whole_bytes: int
    padded_bytes: int
    shard_bytes: int
    finish_ticks: int
    finish_ops: int


class Sketch(NamedTuple):
    """The collectives of a step after some of its passes.

    Args:
        collectives: their sources are ``GatherCost`` and ``ReductionCost``.
        regathers: by parameter, its gather for the backward pass, if it can be gathered again.
        late: parameters that the backward pass alone reads: a copy takes the place of their gather.
        moves: number of moves so far.
    """

    collectives: StepCollectives
    regathers: Mapping[int, Gather]
    late: frozenset[int] = frozenset()
    moves: int = 0

    def edited(self, edits: Sequence[Edit]) -> Sketch:
        """Return the sketch after the edits of one pass, which are all of one kind."""
        return _ACTIONS[edits[0].kind](self, edits) if edits else self

    def _with(self, gathers: Sequence[Gather], reductions: Sequence[Reduction], moves: int = 0) -> Sketch:
        """Return the sketch with other collectives, each in its order."""
        names, end = self.collectives.parameter_names, self.collectives.end
        ordered = tuple(sorted(gathers, key=_place)), tuple(sorted(reductions, key=_place))
        return Sketch(StepCollectives(*ordered, names, end), self.regathers, self.late, self.moves + moves)


_place = operator.attrgetter("at")


def _moved(sketch: Sketch, edits: Sequence[Edit]) -> Sketch:
    """Return the sketch after moves; those in front of the same position keep their order."""
    places: dict[int, Position] = {}
    # ``count`` goes on from pass to pass, so what a later pass moves in front of a position stands behind what an
    # earlier one moved there, as in the list of operations.
    for count, edit in enumerate(sorted(edits, key=lambda edit: edit.what[0].at), sketch.moves):
        places[id(edit.what[0])] = *edit.before[:-1], count, INF
    there = sketch.collectives
    # Written out: ``_replace`` takes twice as long, and a search makes every gather anew for every plan.
    gathers = [
        Gather(one.params, places[id(one)], one.read, one.again, one.dtype, one.source) if id(one) in places else one
        for one in there.gathers
    ]
    reductions = [one._replace(at=places[id(one)]) if id(one) in places else one for one in there.reductions]
    return sketch._with(gathers, reductions, len(edits))


def _merged(sketch: Sketch, edits: Sequence[Edit]) -> Sketch:
    gathers, reductions = list[Gather](), list[Reduction]()
    gone = set[int]()
    for edit in edits:
        several = sorted(edit.what, key=_place)
        if len(several) > 1:
            gone.update(map(id, several))
            if isinstance(several[0], Gather):
                gathers.append(_bucket_of_gathers(several))  # type: ignore[arg-type]
            else:
                reductions.append(_bucket_of_reductions(several))  # type: ignore[arg-type]
    gathers += [one for one in sketch.collectives.gathers if id(one) not in gone]
    reductions += [one for one in sketch.collectives.reductions if id(one) not in gone]
    return sketch._with(gathers, reductions)


def _bucket_of_gathers(several: Sequence[Gather]) -> Gather:
    """Return the gather of a bucket, issued where the first of its members was."""
    first = several[0]
    params, costs = tuple([one.params[0] for one in several]), [one.source for one in several]
    source = GatherCost(*map(sum, zip(*costs, strict=True)))  # ticks and bytes alike add up over the members
    # What reads a bucket is its unpack, which the graph puts directly behind the collective.
    return Gather(params, first.at, (*first.at, 1, INF), first.again, first.dtype, source)


def _bucket_of_reductions(several: Sequence[Reduction]) -> Reduction:
    """Return the reduction of a bucket, issued where the last of its members was: only then is there all of it."""
    last = several[-1]
    params, costs = tuple([one.params[0] for one in several]), [one.source for one in several]
    source = ReductionCost(*map(sum, zip(*costs, strict=True)))
    return Reduction(params, last.at, max(one.made for one in several), last.kinds, last.dtype, source)


def _regathered(sketch: Sketch, edits: Sequence[Edit]) -> Sketch:
    """Return the sketch with more gathers; a bucket, and what is gathered again already, is not."""
    there = {param for one in sketch.collectives.gathers if one.again for param in one.params}
    params = [edit.what[0].params for edit in edits]
    copied = {param for param, *more in params if not more and param in sketch.regathers and param not in there}
    gathers = [one for one in sketch.collectives.gathers if one.params[0] not in copied & sketch.late]
    again = sorted((sketch.regathers[param] for param in copied), key=_place)
    # Each stands directly in front of its reader, behind what was moved there before.
    gathers += [one._replace(at=(*one.read[:-1], count, INF)) for count, one in enumerate(again, sketch.moves)]
    return sketch._with(gathers, sketch.collectives.reductions, len(again))


# A sketch takes for granted that gradients are completed last and that the compiler keeps the order.
_ACTIONS: Mapping[Kind, Callable[[Sketch, Sequence[Edit]], Sketch]] = {
    "move": _moved, "merge": _merged, "copy": _regathered,
    "finish": lambda sketch, edits: sketch, "pace": lambda sketch, edits: sketch,
}  # fmt: skip
