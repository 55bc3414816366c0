"""Calls that were made before: one look-up by tree, kinds of arguments and JAX's contexts finds all that they need.

The first call of a kind is bound to parameters, checked, traced, placed and compiled (``submit``); what it found is
kept with the program for as long as the devices stay the same. A repeated call does none of that again. What is unusual
about a call, such as an argument that was donated or is no array, is not found here, and goes the long way, which names
it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import numpy as np

from pathways_nb.errors import UsageError
from pathways_nb.program import jax_contexts
from pathways_nb.program.computation import Computation
from pathways_nb.program.models import has_model, static_part
from pathways_nb.program.program_tracer import ProgramTracer
from pathways_nb.program.signature import Signature, aval_of
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.session.future_kinds import FutureKind
from pathways_nb.session.futures import Future
from pathways_nb.session.session import Session

_MOST = 64
"""Kinds of calls that a program remembers; more than that are forgotten together."""
_kinds_of = attrgetter("_known")
_NUMBERS = (bool, int, float, complex)


@dataclass(frozen=True, slots=True, eq=False)
class KnownCall:
    """What equal calls share.

    Args:
        compiled_plan: its compiled plan.
        kinds: of its results, and after them of the copies that it leaves at other places.
        donated: positions of donated arguments.
        moved: positions of what must be brought to its place; see ``Driver.moved``.
        build: puts results together to what the function returns.
        order: for each argument, its position among the leaves of the call as it was written.
    """

    compiled_plan: CompiledPlan
    kinds: tuple[FutureKind, ...]
    donated: tuple[int, ...]
    moved: tuple[int, ...] | None
    build: Callable[[Sequence[Any]], Any]
    order: tuple[int, ...] | None = None


class Written(NamedTuple):
    """A call as it was written.

    Args:
        leaves: the arrays, numbers and other leaves of its arguments, positional ones first.
        key: what equal calls have in common; ``None`` of one that no other call is equal to.
    """

    leaves: list[Any]
    key: Hashable


def written(session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Written:
    """Return a call as it was written, with positional and keyword arguments."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    try:
        kinds: tuple[Any, ...] = tuple(map(_kinds_of, leaves))  # in C: mostly all are futures
    except AttributeError:
        # In a model of Equinox, numbers may be static: then equal calls have equal ones.
        kind_of = _kind_or_static if has_model(tree) else _kind_of
        kinds = tuple([kind_of(session, leaf) for leaf in leaves])
    if None in kinds:
        return Written(leaves, None)
    if len(leaves) < 2 or len(set(map(id, leaves))) == len(leaves):
        return Written(leaves, (tree, kinds, jax_contexts.current()))
    first: dict[int, int] = {}
    repeated = tuple(first.setdefault(id(leaf), at) for at, leaf in enumerate(leaves))
    return Written(leaves, (tree, kinds, jax_contexts.current(), repeated))


def find(session: Session, target: Computation | ProgramTracer, key: Hashable) -> KnownCall | None:
    """Return what calls of a program or computation need that are equal to one that was made."""
    known_calls = target.known_calls.get(session.epoch)
    return None if known_calls is None else known_calls.get(key)


def remember(
    session: Session, target: Computation | ProgramTracer, made: Written, call: Signature, known: KnownCall
) -> None:
    """Keep what a call has found for equal ones.

    Args:
        session: the controller.
        target: what was called.
        made: the call as it was written.
        call: the same, bound to parameters.
        known: what it has found; ``order`` is filled in.
    """
    position = {id(leaf): at for at, leaf in enumerate(made.leaves)}
    order = tuple([position.get(id(leaf), -1) for leaf in call.leaves])
    if made.key is None or -1 in order:  # an argument that was converted must be converted at each call
        return
    # With the target and in no table of all: what is found may refer to the target, as its host work does.
    known_calls = target.known_calls.setdefault(session.epoch, {})
    if len(known_calls) >= _MOST:
        known_calls.clear()
    known_calls[made.key] = replace(known, order=None if order == tuple(range(len(made.leaves))) else order)


def _kind_of(session: Session, leaf: Any) -> Any:
    """Return what calls are told apart by of a leaf; ``None`` of one with which no call is known."""
    if type(leaf) is Future:
        return leaf._known
    if isinstance(leaf, jax.core.Tracer):
        return None
    try:
        if isinstance(leaf, jax.Array):
            return session.kind(aval_of(leaf), "", leaf.sharding)  # type: ignore[arg-type]
        if isinstance(leaf, (np.ndarray, np.generic, *_NUMBERS)) and (aval := aval_of(leaf, exact=True)) is not None:
            return session.kind(aval, "")
    except UsageError:  # the number is not JAX's
        return None
    return None


def _kind_or_static(session: Session, leaf: Any) -> Any:
    """Return the same of a leaf of a model, or beside one; what is no array is told apart by its value."""
    if isinstance(leaf, (Future, jax.Array, np.ndarray, np.generic)):
        return _kind_of(session, leaf)
    try:
        return None if isinstance(leaf, jax.core.Tracer) or hasattr(leaf, "shape") else static_part(leaf)
    except UsageError:  # it cannot be hashed, or is no argument at all
        return None
