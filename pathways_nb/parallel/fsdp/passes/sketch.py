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


class Gathered(NamedTuple):
    """What a gather costs.

    Args:
        before: ticks of the conversions in front of it.
        sent: bytes of one shard.
        made: bytes of the whole.
    """

    before: int
    sent: int
    made: int


class Reduced(NamedTuple):
    """What a reduction costs.

    Args:
        whole: bytes of the gradient without padding.
        padded: bytes of the gradient as it is exchanged.
        shard: bytes of one shard.
        after: ticks of what completes it.
        operations: number of those operations; without one, nothing waits for it but the end of the step.
    """

    whole: int
    padded: int
    shard: int
    after: int
    operations: int


class Sketch(NamedTuple):
    """The collectives of a step at some stage of its passes.

    Args:
        collectives: their sources are ``Gathered`` and ``Reduced``.
        again: by parameter, its gather for the backward pass, if it can be gathered again.
        late: parameters that the backward pass alone reads: a copy takes the place of their gather.
        moves: number of moves so far.
    """

    collectives: StepCollectives
    again: Mapping[int, Gather]
    late: frozenset[int] = frozenset()
    moves: int = 0

    def edited(self, edits: Sequence[Edit]) -> Sketch:
        """Return the sketch after the edits of one pass, which are all of one kind."""
        return _ACTIONS[edits[0].kind](self, edits) if edits else self

    def _with(self, gathers: Sequence[Gather], reductions: Sequence[Reduction], moves: int = 0) -> Sketch:
        """Return the sketch with other collectives, each in its order."""
        names, end = self.collectives.parameter_names, self.collectives.end
        ordered = tuple(sorted(gathers, key=_place)), tuple(sorted(reductions, key=_place))
        return Sketch(StepCollectives(*ordered, names, end), self.again, self.late, self.moves + moves)


_place = operator.attrgetter("at")


def _place_of_edit(edit: Edit) -> Position:
    return edit.what[0].at


def _moved(sketch: Sketch, edits: Sequence[Edit]) -> Sketch:
    """Return the sketch after moves; those in front of the same position keep their order."""
    places: dict[int, Position] = {}
    for count, edit in enumerate(sorted(edits, key=_place_of_edit), sketch.moves):
        places[id(edit.what[0])] = *edit.before[:-1], count, INF
    there = sketch.collectives
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
    """Return the gather of a bucket, which is unpacked directly behind it."""
    first = several[0]
    params, costs = tuple([one.params[0] for one in several]), [one.source for one in several]
    source = Gathered(*map(sum, zip(*costs, strict=True)))
    return Gather(params, first.at, (*first.at, 1, INF), first.again, first.dtype, source)


def _bucket_of_reductions(several: Sequence[Reduction]) -> Reduction:
    last = several[-1]
    params, costs = tuple([one.params[0] for one in several]), [one.source for one in several]
    source = Reduced(*map(sum, zip(*costs, strict=True)))
    return Reduction(params, last.at, max(one.made for one in several), last.kinds, last.dtype, source)


def _copied(sketch: Sketch, edits: Sequence[Edit]) -> Sketch:
    """Return the sketch with more gathers; a bucket, and what is gathered again already, is not."""
    there = {param for one in sketch.collectives.gathers if one.again for param in one.params}
    params = [edit.what[0].params for edit in edits]
    copied = {param for param, *more in params if not more and param in sketch.again and param not in there}
    gathers = [one for one in sketch.collectives.gathers if one.params[0] not in copied & sketch.late]
    again = sorted((sketch.again[param] for param in copied), key=_place)
    # Each stands directly in front of its reader, behind what was moved there before.
    gathers += [one._replace(at=(*one.read[:-1], count, INF)) for count, one in enumerate(again, sketch.moves)]
    return sketch._with(gathers, sketch.collectives.reductions, len(again))


def _same(sketch: Sketch, edits: Sequence[Edit]) -> Sketch:
    """Return the sketch as it is: that gradients are completed last, and orders kept, is taken for granted."""
    return sketch


_ACTIONS: Mapping[Kind, Callable[[Sketch, Sequence[Edit]], Sketch]] = {
    "move": _moved, "merge": _merged, "copy": _copied, "finish": _same, "bind": _same,
}  # fmt: skip
