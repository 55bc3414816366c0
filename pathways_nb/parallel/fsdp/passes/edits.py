"""What a pass sees of a step, and what it may say: collectives in order, and edits of them as data.

A pass reads ``StepCollectives`` and yields edits. Two interpreters carry them out: ``graph_edits`` on the list of
operations that runs, ``sketch`` on the few numbers from which a search adds up the time of a plan. Positions have an
order and nothing else, because they are places in a list for the one and places between stretches of computation for
the other.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pathways_nb.errors import PlanError
from pathways_nb.util.words import counted

Position = tuple[float, ...]
"""A place in the step. Positions of one step are compared; a pass takes them from collectives and makes none itself."""
Kind = Literal["move", "merge", "copy", "finish", "pace"]


class Gather(NamedTuple):
    """One gather of a step.

    Args:
        params: positions of the parameters that it carries.
        at: where it is issued.
        read: the first operation that reads what it makes, and so waits for it.
        again: whether it gathers for the backward pass what the forward pass has gathered already.
        dtype: of what it carries.
        source: the interpreter's own.
    """

    params: tuple[int, ...]
    at: Position
    read: Position
    again: bool
    dtype: str
    source: Any = None


class Reduction(NamedTuple):
    """One reduction of gradients, with the second one that follows it under hybrid sharding.

    Args:
        params: positions of the parameters whose gradients it carries.
        at: where it is issued.
        made: the operation that makes what it sends.
        kinds: for each of its collectives one after another, name and axis.
        dtype: of what it carries.
        source: the interpreter's own.
    """

    params: tuple[int, ...]
    at: Position
    made: Position
    kinds: tuple[tuple[str, str], ...]
    dtype: str
    source: Any = None


class Edit(NamedTuple):
    """One edit that a pass makes.

    Args:
        kind: what it does.
        what: the collectives.
        before: of a move, the position in front of which the collective is issued.
    """

    kind: Kind
    what: tuple[Gather | Reduction, ...]
    before: Position = ()


@dataclass(frozen=True, eq=False, repr=False)
class StepCollectives:
    """The collectives of a step, as a pass sees them.

    Args:
        gathers: in the order in which they are issued.
        reductions: in the order in which they are issued.
        parameter_names: of the model.
        end: the position behind everything.
    """

    gathers: tuple[Gather, ...]
    reductions: tuple[Reduction, ...]
    parameter_names: tuple[str, ...]
    end: Position

    @cached_property
    def alike(self) -> Mapping[Any, Mapping[int, Gather | Reduction]]:
        """The collectives of one parameter each that can be merged with each other, by parameter.

        The keys are ``"gather"``, ``"regather"``, and of reductions the names and axes of their collectives: a shard is
        reduced apart from a whole gradient.
        """
        found: dict[Any, dict[int, Gather | Reduction]] = {"gather": {}, "regather": {}}
        every: list[Gather | Reduction] = [*self.gathers, *self.reductions]
        for one in every:
            if len(one.params) == 1:
                found.setdefault(_group(one), {})[one.params[0]] = one
        return MappingProxyType({kind: MappingProxyType(of) for kind, of in found.items()})

    @cached_property
    def ids(self) -> frozenset[int]:
        """The identities of the collectives."""
        return frozenset(map(id, (*self.gathers, *self.reductions)))

    @cached_property
    def positions(self) -> frozenset[Position]:
        """The positions that a pass may move to."""
        gathers = (place for one in self.gathers for place in (one.at, one.read))
        reductions = (place for one in self.reductions for place in (one.at, one.made))
        return frozenset([*gathers, *reductions, self.end])

    def names(self, one: Gather | Reduction) -> tuple[str, ...]:
        """Return the names of the parameters that a collective carries."""
        return tuple(self.parameter_names[param] for param in one.params)

    def label(self, one: Gather | Reduction) -> str:
        """Return what a collective does and carries, such as ``"gather layers.3.wq +8"``."""
        verb = ("regather" if one.again else "gather") if isinstance(one, Gather) else "reduce"
        first, *more = self.names(one)
        return f"{verb} {first}" + (f" +{len(more)}" if more else "")

    def move(self, one: Gather | Reduction, before: Position) -> Edit:
        """Return the edit that issues a collective, with what prepares it, in front of another position.

        Args:
            one: the collective.
            before: ``at`` or ``read`` of a gather, ``at`` or ``made`` of a reduction, or ``end``. A gather cannot be
                issued behind what reads it, a reduction not in front of what makes it.
        """
        return Edit("move", (one,), before)

    def merge(self, *several: Gather | Reduction) -> Edit:
        """Return the edit that makes one collective of several, which pays the latency of one.

        Gathers are issued where the first of them was, reductions where the last of them is made.
        """
        given: Any = several[0] if len(several) == 1 and type(several[0]) in (list, tuple) else several
        return Edit("merge", tuple(given))  # step.merge([one, other]) is meant so, too

    def copy(self, gather: Gather) -> Edit:
        """Return the edit that gathers again in front of the first operation of the backward pass that reads it.

        Nothing is added for what the backward pass does not read.
        """
        return Edit("copy", (gather,))

    def finish(self, reduction: Reduction) -> Edit:
        """Return the edit that unpacks and converts what was reduced behind everything else."""
        return Edit("finish", (reduction,))

    def pace(self, gather: Gather) -> Edit:
        """Return the edit that makes the compiler keep a gather behind what stands in front of it."""
        return Edit("pace", (gather,))

    def __repr__(self) -> str:
        return f"<{counted(len(self.gathers), 'gather')} and {counted(len(self.reductions), 'reduction')} of a step>"


Make = Callable[..., Iterable[Edit]]
"""A pass: a function of ``StepCollectives`` and its settings."""


def checked(name: str, step: StepCollectives, made: Iterable[Edit] | None, is_built_in: bool = False) -> list[Edit]:
    """Return the edits that a pass made, after checking that they can be carried out.

    Args:
        name: of the pass.
        step: the collectives that the pass was given.
        made: what it returned.
        is_built_in: whether every step has it.

    Raises:
        PlanError: naming the pass and the collective.
    """
    # A search runs the built-in passes thousands of times. What ``bucket`` merges, a plan says, so that is checked.
    if is_built_in and isinstance(made, list) and not (made and made[0].kind == "merge"):
        return made
    if made is None or isinstance(made, Edit) or not isinstance(made, Iterable):
        raise PlanError(f"pass {name!r} returned {made!r}; yield its edits, such as `yield step.move(gather, …)`.")
    found = list(made)
    for edit in found:
        if not isinstance(edit, Edit) or edit.kind not in _OF_KIND:
            raise PlanError(f"pass {name!r} yielded {edit!r}; yield edits, such as `yield step.move(gather, …)`.")
    for problem in _problems(step, found):
        raise PlanError(f"pass {name!r}: {problem}")
    return found


def _group(one: Gather | Reduction) -> Any:
    """Return what collectives that can be merged have in common."""
    if isinstance(one, Gather):
        return "regather" if one.again else "gather"
    return one.kinds


def _problems(step: StepCollectives, edits: Sequence[Edit]) -> Iterator[str]:
    """Yield why edits cannot be made; a search asks this thousands of times, so the usual answer comes quickly."""
    kinds = {edit.kind for edit in edits}
    if len(kinds) > 1:
        yield f"it yields edits of several kinds ({', '.join(sorted(kinds))}); write a pass for each."
    # By identity: two collectives may be equal, and one of another step must not pass for one of this.
    every = [one for edit in edits for one in edit.what]
    once = set(map(id, every))
    if not once <= step.ids:
        strange = next(one for one in every if id(one) not in step.ids)
        yield f"it edits {strange!r}, which is no collective of this step; take them from step.gathers."
    if len(once) < len(every):
        often = Counter(map(id, every))
        twice = next(one for one in every if often[id(one)] > 1)
        yield f'it edits "{step.label(twice)}" twice; yield one edit for each collective.'
    yield from itertools.chain.from_iterable(_OF_KIND[edit.kind](step, edit) for edit in edits)


def _of_move(step: StepCollectives, edit: Edit) -> Sequence[str]:
    (one,), before = edit.what, edit.before
    # A position is a tuple, and so are collectives: only the exact type is one.
    if type(before) is not tuple or before not in step.positions:
        given = "a collective" if isinstance(before, (Gather, Reduction)) else repr(before)
        return [
            f'it moves "{step.label(one)}" in front of {given}; take a position, such as before=step.gathers[0].at.'
        ]
    if isinstance(one, Gather):
        if before <= one.read:
            return ()
        return [
            f'it moves "{step.label(one)}" behind the operation that first reads it. A gather may begin earlier, not '
            f"later than its first reader."
        ]
    if before > one.made:
        return ()
    return [
        f'it moves "{step.label(one)}" in front of the operation that makes it. A reduction may begin later, not '
        f"earlier than its gradient is made."
    ]


def _of_merge(step: StepCollectives, edit: Edit) -> Sequence[str]:
    several = edit.what
    if not several:
        return ["it merges nothing; give the collectives, as in step.merge(one, other)."]
    for one in several:
        if len(one.params) > 1:  # a bucket of buckets would need to know how each is packed
            return [f'it merges "{step.label(one)}", which is a bucket already; let the pass come before "bucket".']
    if len({_group(one) for one in several}) > 1:
        both = " and ".join(f'"{step.label(one)}"' for one in several[:2])
        return [f"it merges {both}: gathers, repeated gathers and reductions are merged apart."]
    dtypes = {one.dtype: one for one in several}
    if len(dtypes) < 2:
        return ()
    (first, a), (second, b) = list(dtypes.items())[:2]
    return [
        f"a bucket holds {step.names(a)[0]} ({first}) and {step.names(b)[0]} ({second}): one collective "
        f"carries one dtype. Put them into different buckets, or give pw.fsdp a param_dtype and a reduce_dtype."
    ]


def _of_gather(step: StepCollectives, edit: Edit) -> Sequence[str]:
    (one,) = edit.what
    return () if isinstance(one, Gather) else [f'it cannot {edit.kind} "{step.label(one)}", which is no gather.']


def _of_reduction(step: StepCollectives, edit: Edit) -> Sequence[str]:
    (one,) = edit.what
    return [f'it cannot {edit.kind} "{step.label(one)}", which is no reduction.'] if isinstance(one, Gather) else ()


_OF_KIND: dict[str, Callable[[StepCollectives, Edit], Sequence[str]]] = {
    "move": _of_move, "merge": _of_merge, "copy": _of_gather, "finish": _of_reduction, "pace": _of_gather,
}  # fmt: skip
"""Why an edit cannot be made, by its kind."""
