"""Walks the jaxprs of both traces together, into calls, loops and branches.

An equation that the walk does not understand gives an unknown mark, never a wrong one: then numbers decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from pathways_nb.cost.jaxpr.primitives import COLLECTIVES
from pathways_nb.jaxpr.flat import called, scan_sizes
from pathways_nb.parallel.batch_walk.arithmetic import either, elementwise
from pathways_nb.parallel.batch_walk.choices import with_choices
from pathways_nb.parallel.batch_walk.contraction_rules import CONTRACTIONS
from pathways_nb.parallel.batch_walk.custom_rules import RULES, is_tangent_of, tangents_of
from pathways_nb.parallel.batch_walk.equation_pair import EquationPair, WalkedAxis, grown
from pathways_nb.parallel.batch_walk.index_rules import INDEXING
from pathways_nb.parallel.batch_walk.marks import FIXED, Counter, Kind, Mark, Reason, constant
from pathways_nb.parallel.batch_walk.mean import is_mean, mean_mark
from pathways_nb.parallel.batch_walk.shape_rules import MOVES

_MOST_WALKS = 5
"""Times that a loop's body is walked until what it carries no longer changes."""

_LARGEST = 1 << 20
"""Elements of the largest constant whose values are compared between the traces."""


class UnlikeError(Exception):
    """The two traces consist of different operations."""


def walk(axis: WalkedAxis, one: Any, two: Any, marks: Sequence[Mark]) -> list[Mark]:
    """Return the marks of a function's outputs.

    Args:
        axis: what is walked along.
        one: the closed jaxpr at the smaller size.
        two: at the larger size.
        marks: of the inputs.
    """
    try:
        return _Walk(axis).run(one, two, marks)
    except UnlikeError:
        reason = Reason(f"its operations are others for another number of {axis.name}")
        return [Mark(Kind.UNKNOWN, trained=True, reason=reason)] * len(one.jaxpr.outvars)


def marks_inside(axis: WalkedAxis, one: Any, two: Any, marks: Sequence[Mark]) -> dict[Any, Mark]:
    """Return the marks of all variables of a function's outermost jaxpr at the smaller size.

    Args:
        axis: what is walked along.
        one: the closed jaxpr at the smaller size.
        two: at the larger size.
        marks: of the inputs.

    Raises:
        UnlikeError: the operations are others at the other size.
    """
    env: dict[Any, Mark] = {}
    _Walk(axis).run(one, two, marks, env)
    return env


class _Walk:
    def __init__(self, axis: WalkedAxis):
        self.axis = axis
        self._depth = 0
        """How many loops there are around the equation."""
        self._in_rule = False
        """Whether the tangents of a call are walked, by its own rule."""
        self._rules: dict[Any, tuple[EquationPair, bool]] = {}
        """Of calls whose gradients have a rule of their own, which JAX's functions share."""
        self._bodies = {"scan": self._scan, "while": self._while, "cond": self._cond, "shard_map": self._mapped}

    def run(self, one: Any, two: Any, marks: Sequence[Mark], env: dict[Any, Mark] | None = None) -> list[Mark]:
        """Return the marks of the outputs of a closed or open jaxpr, and put those of its variables into ``env``."""
        first, second = (getattr(jaxpr, "jaxpr", jaxpr) for jaxpr in (one, two))
        if len(first.eqns) != len(second.eqns):
            raise UnlikeError
        # By variable of the smaller trace alone: the two walks are in step, so those of the larger need none.
        env = {} if env is None else env
        env.update(zip(first.invars, marks, strict=True))
        consts = zip(first.constvars, getattr(one, "consts", ()), getattr(two, "consts", ()), strict=False)
        env.update((var, _of_constant(a, b, self.axis.ratio)) for var, a, b in consts)

        def read(a: Any, b: Any) -> Mark:
            if hasattr(a, "val") != hasattr(b, "val"):
                raise UnlikeError
            # A literal has its value with it. A variable without a mark is a constant of an open jaxpr.
            return _of_constant(a.val, b.val, self.axis.ratio) if hasattr(a, "val") else env.get(a, FIXED)

        for eqn, other in zip(first.eqns, second.eqns, strict=True):
            if eqn.primitive is not other.primitive or len(eqn.invars) != len(other.invars):
                raise UnlikeError
            op = EquationPair(
                self.axis, eqn, other, [read(a, b) for a, b in zip(eqn.invars, other.invars, strict=True)]
            )
            env.update(zip(eqn.outvars, self._equation(op), strict=True))
        return [read(a, b) for a, b in zip(first.outvars, second.outvars, strict=True)]

    def _equation(self, op: EquationPair) -> Sequence[Mark]:
        if is_mean(op.one):
            return [mean_mark(op)]
        if (inner := called(op.one)) is not None:
            made = list(map(op.located, self.run(inner, called(op.two), op.marks)))
            if not op.trained or op.name not in RULES or self._follows_rule(op, made):
                return made
            # The value may be a mean; its gradients are what the user's rule says, and the step uses those.
            lost = op.unknown(f"gradients of '{RULES[op.name]}'")
            return [mark if mark.is_lost else lost for mark in made]
        if op.name in self._bodies:
            return self._bodies[op.name](op)
        if op.marks and op.worst.is_lost:  # the first reason is the one that the user is told
            return op.all(op.worst)
        for rules in (MOVES, CONTRACTIONS, INDEXING):
            if op.name in rules:
                return with_choices(op, op.all(found) if isinstance(found := rules[op.name](op), Mark) else found)
        # A primitive with a body that the walk does not know, such as a kernel.
        if op.marks and op.worst.kind > Kind.FIXED and any(True for _ in jex.jaxprs_in_params(op.params)):
            return op.all(op.unknown())
        return with_choices(op, elementwise(op))

    def _follows_rule(self, op: EquationPair, made: Sequence[Mark]) -> bool:
        """Return whether gradients through a call with a rule of its own depend on rows as its results do.

        Tangents are linear and are walked. Cotangents may be anything, such as clipped, and are not.
        """
        if op.name == "custom_vjp_call":
            return False
        if op.worst.kind == Kind.FIXED or self._in_rule:  # tangents are not differentiated again
            return True
        # jax.nn's functions share their equations, so a model of many layers asks the same again and again. ``op`` is
        # stored with the answer so that no other equation gets its id.
        key = id(op.one), id(op.two), tuple(op.marks)
        if key not in self._rules:
            self._rules[key] = op, self._tangents_follow(op, made)
        return self._rules[key][1]

    def _tangents_follow(self, op: EquationPair, made: Sequence[Mark]) -> bool:
        self._in_rule = True
        try:
            one, two = tangents_of(op.one), tangents_of(op.two)
            found = self.run(one.jaxpr, two.jaxpr, [op.marks[at].plain() for at in one.given])
        except Exception:  # numbers decide, or the rule fails in the step as it does here
            return False
        finally:
            self._in_rule = False
        return all(is_tangent_of(mark, made[at]) for mark, at in zip(found, one.made, strict=True))

    def _scan(self, op: EquationPair) -> Sequence[Mark]:
        one, two = op.params, op.two.params
        consts, count = scan_sizes(op.one)
        fixed, carry, over = op.marks[:consts], list(op.marks[consts : consts + count]), op.marks[consts + count :]
        # A slice along the rows belongs to one row: inside, ``loop`` says of which loop.
        self._depth += 1
        sliced = [_slice_of(mark, self._depth) for mark in over]
        if one["length"] != two["length"]:
            # A loop over the rows: what a turn changes depends on how many came before, what it passes on does not.
            body = one["jaxpr"].jaxpr
            pairs = zip(body.invars[consts : consts + count], body.outvars[:count], strict=True)
            varying = [given is not made for given, made in pairs]
            carry = [self._counting(op, mark) if varies else mark for mark, varies in zip(carry, varying, strict=True)]
        # Until a turn changes no mark: they only become worse, so it takes few turns.
        for _ in range(_MOST_WALKS):
            made = self.run(one["jaxpr"], two["jaxpr"], [*fixed, *carry, *sliced])
            joint = [either(op, a, b) for a, b in zip(carry, made[:count], strict=True)]
            after = [self._carried(op, mark) for mark in joint]
            if after == carry:
                break
            carry = after
        else:
            carry, made = [op.unknown()] * count, [op.unknown()] * len(made)
        self._depth -= 1
        return [*carry, *(_stacked(mark, self._depth + 1) for mark in made[count:])]

    def _carried(self, op: EquationPair, mark: Mark) -> Mark:
        """Return a mark that is carried from turn to turn; what belongs to one row of this loop must not be."""
        if not mark.is_single or mark.loop != self._depth:
            return mark
        what = f"a value is carried from {self.axis.one} to {self.axis.one} by {op.name!r}"
        return op.mixed(what) if self.axis.name == "tokens" else op.unknown(what)

    def _counting(self, op: EquationPair, mark: Mark) -> Mark:
        """Return the mark of what a loop over rows changes in every turn: it depends on the number of the row."""
        what = f"a value is changed from {self.axis.one} to {self.axis.one} by {op.name!r}"
        entangled = mark.kind > Kind.FIXED and self.axis.name == "tokens"
        return mark if mark.is_lost else op.mixed(what) if entangled else op.unknown(what)

    def _while(self, op: EquationPair) -> Sequence[Mark]:
        one, two = op.params, op.two.params
        ends, bodies = one.get("cond_nconsts"), one.get("body_nconsts")
        if ends is None or bodies is None:
            return op.all(op.unknown())
        for_end, for_body = op.marks[:ends], op.marks[ends : ends + bodies]
        carry = list(op.marks[ends + bodies :])
        for _ in range(_MOST_WALKS):
            made = self.run(one["body_jaxpr"], two["body_jaxpr"], [*for_body, *carry])
            after = [either(op, a, b) for a, b in zip(carry, made, strict=True)]
            if after == carry:
                break
            carry = after
        else:
            return op.all(op.unknown())
        # When the loop ends is asked of the marks that hold in every turn.
        (ended,) = self.run(one["cond_jaxpr"], two["cond_jaxpr"], [*for_end, *carry])
        if ended.kind == Kind.FIXED and (ended.power != 0 or ended.counts):
            return op.all(op.unknown(f"the number of turns of {op.name!r} depends on that of the {self.axis.name}"))
        return carry if ended.kind == Kind.FIXED else self._decided(op, ended, "a loop ends")

    def _cond(self, op: EquationPair) -> Sequence[Mark]:
        chosen, *rest = op.marks
        # All branches are walked: which one is taken may be known only when the step runs.
        pairs = zip(op.params["branches"], op.two.params["branches"], strict=True)
        results = [self.run(one, two, rest) for one, two in pairs]
        if chosen.kind > Kind.FIXED and not chosen.is_single:
            return self._decided(op, chosen, "a branch is taken")
        if chosen.power != 0 and not chosen.is_zero:
            return op.all(op.unknown(f"a branch is taken by the number of {self.axis.name}"))
        found = results[0]
        for other in results[1:]:
            found = [either(op, a, b) for a, b in zip(found, other, strict=True)]
        if chosen.kind == Kind.ROWS:  # in a loop over rows, the branch of each: even what is fixed depends on the row
            found = [replace(chosen.plain(), trained=True) if mark.kind == Kind.FIXED else mark for mark in found]
        return found

    def _decided(self, op: EquationPair, mark: Mark, what: str) -> list[Mark]:
        if mark.is_lost:
            return op.all(mark)
        if mark.kind == Kind.SUM:
            return op.all(op.mixed(f"{what} by a sum over {self.axis.name}"))
        return op.all(op.unknown(f"{what} by values of {self.axis.name}"))

    def _mapped(self, op: EquationPair) -> Sequence[Mark]:
        """Walk into a ``shard_map`` that does not split rows; collectives then add up what all devices have."""
        pairs = zip(op.marks, op.params.get("in_specs", ()), strict=False)
        if any(mark.kind == Kind.ROWS and mark.at is not None and mark.at < len(spec) and spec[mark.at] is not None
               for mark, spec in pairs):  # fmt: skip
            return op.all(op.unknown(f"'shard_map' that splits the {self.axis.name}"))
        # A sum over devices of a sum over rows is one, too. Other collectives move rows between devices.
        if any(each.primitive.name in COLLECTIVES and not each.primitive.name.startswith("psum")
               for each in op.params["jaxpr"].eqns) and op.worst.kind > Kind.FIXED:  # fmt: skip
            return op.all(op.unknown("collectives inside 'shard_map'"))
        return self.run(op.params["jaxpr"], op.two.params["jaxpr"], op.marks)


def _slice_of(mark: Mark, depth: int) -> Mark:
    """Return the mark of one of the slices over which a scan goes."""
    if mark.is_lost or mark.kind == Kind.SUM:
        return mark
    if 0 in dict(mark.counts):
        return Mark(Kind.UNKNOWN, trained=mark.trained, reason=Reason("'scan' over a count"))
    if mark.context == 0:  # a loop over the tokens up to now, as of a blockwise attention
        return Mark(Kind.UNKNOWN, trained=mark.trained, reason=Reason("'scan' over earlier tokens"))
    at = None if mark.at in (0, None) else mark.at - 1
    context = None if mark.context is None else mark.context - 1
    counts = tuple((dim - 1, start) for dim, start in mark.counts)
    loop = depth if mark.at == 0 else mark.loop
    found = replace(mark.plain(), at=at, context=context, counts=counts, masked=mark.masked, number=mark.number)
    return replace(found, loop=loop)


def _stacked(mark: Mark, depth: int) -> Mark:
    """Return the mark of what a scan stacks of its slices."""
    if mark.kind == Kind.ROWS:
        own = mark.is_single and mark.loop == depth  # of each turn its row: stacked, the rows are the first dimension
        at = 0 if own else None if mark.at is None else mark.at + 1
        loop = 0 if own else mark.loop
        return replace(mark.plain(), at=at, context=None if mark.context is None else mark.context + 1, loop=loop)
    return replace(mark.plain(), counts=tuple((dim + 1, start) for dim, start in mark.counts))


def _of_constant(one: Any, two: Any, ratio: float) -> Mark:
    """Return the mark of a literal or of an array that was closed over."""
    if one is two and jnp.ndim(one):  # an array that was closed over, in both traces the same object
        return FIXED
    try:
        a, b = np.asarray(one), np.asarray(two)
    except Exception:  # a traced value, a key
        return FIXED if one is two else Mark(power=None)
    if a.dtype.kind not in "biuf" and str(a.dtype) != "bfloat16":
        return FIXED if one is two else Mark(power=None)
    if a.ndim == 0:  # what Python computed from a shape, such as 1 / B, is a number that differs between the traces
        return constant((float(a), float(b)), ratio)
    # Too large to compare: as fixed as its shape says.
    if max(a.size, b.size) > _LARGEST or not a.size:
        return FIXED if a.shape == b.shape else Mark(power=None)
    if all((each == each.flat[0]).all() for each in (a, b)):
        return constant((float(a.flat[0]), float(b.flat[0])), ratio)
    dims = grown((a.shape, b.shape)) if a.ndim == b.ndim else None
    if dims == []:
        return FIXED if np.array_equal(a, b, equal_nan=a.dtype.kind == "f") else Mark(power=None)
    # np.arange(B), which JAX does not see being made.
    if dims == [0] and a.ndim == 1 and all(np.array_equal(each, np.arange(len(each)) + each[0]) for each in (a, b)):
        start = int(a[0]), int(b[0])
        return Mark(counts=((0, start),), counter=Counter(((0, 1),), start))
    return Mark(counts=tuple((dim, None) for dim in dims or range(a.ndim)))
