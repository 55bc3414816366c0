"""Calls that were made before: one look-up by tree, kinds of arguments and JAX's contexts finds all that they need.

The first call of a kind is bound to parameters, checked, traced, placed and compiled (``submit``); what it found is
kept with the program for as long as the devices stay the same. A repeated call does none of that again. What is unusual
about a call, such as an argument that was donated or is no array, is not found here, and goes the long way, which names
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from pathways_nb.errors import UsageError
from pathways_nb.program import jax_contexts
from pathways_nb.program.computation import Computation
from pathways_nb.program.program_tracer import ProgramTracer
from pathways_nb.program.signature import Signature, aval_of
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.session.future_kinds import FutureKind
from pathways_nb.session.futures import Future
from pathways_nb.session.session import Session

_MOST = 64
"""Kinds of calls that a program remembers; more than that are forgotten together."""
_kinds_of, _ids = attrgetter("_known"), id
_NUMBERS = (bool, int, float, complex)


@dataclass(frozen=True, slots=True, eq=False)
class KnownCall:
    """What equal calls share.

    Args:
        name: of the program. It is not the program itself, by which what is known is kept: that would keep it alive.
        compiled_plan: its compiled plan.
        kinds: of its results, and after them of the copies that it leaves at other places.
        donated: positions of donated arguments.
        moved: positions of what must be brought to its place; see ``Driver.moved``.
        build: puts results together to what the function returns.
        order: for each argument, its position among the leaves of the call as it was written.
    """

    name: str
    compiled_plan: CompiledPlan
    kinds: tuple[FutureKind, ...]
    donated: tuple[int, ...]
    moved: tuple[int, ...] | None
    build: Callable[[Sequence[Any]], Any]
    order: tuple[int, ...] | None = None


class Key:
    """A call as it was written, and what it is known by.

    Args:
        session: the controller.
        args: positional arguments.
        kwargs: keyword arguments.
    """

    __slots__ = ("leaves", "value")

    def __init__(self, session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.leaves, tree = jax.tree.flatten((args, kwargs))
        leaves = self.leaves
        try:
            kinds: tuple[Any, ...] = tuple(map(_kinds_of, leaves))  # in C: mostly all are futures
        except AttributeError:
            kinds = tuple([_kind_of(session, leaf) for leaf in leaves])
        repeated = None
        if len(set(map(_ids, leaves))) != len(leaves):
            first: dict[int, int] = {}
            repeated = tuple(first.setdefault(id(leaf), at) for at, leaf in enumerate(leaves))
        self.value = None if None in kinds else (tree, kinds, repeated, jax_contexts.current())


_Tables = WeakKeyDictionary[Any, dict[Any, KnownCall]]
_made: WeakKeyDictionary[Computation | ProgramTracer, _Tables] = WeakKeyDictionary()
"""By program or computation, and epoch of a session."""


def find(session: Session, target: Computation | ProgramTracer, key: Key) -> KnownCall | None:
    """Return what calls of a program or computation need that are equal to this one, if one was made."""
    of_epochs = _made.get(target)
    known_calls = None if of_epochs is None else of_epochs.get(session.epoch)
    return None if known_calls is None or key.value is None else known_calls.get(key.value)


def remember(
    session: Session, target: Computation | ProgramTracer, key: Key, call: Signature, known: KnownCall
) -> None:
    """Keep what a call has found for equal ones.

    Args:
        session: the controller.
        target: what was called.
        key: the call as it was written.
        call: the same, bound to parameters.
        known: what it has found, with ``order`` to be filled in.
    """
    position = {id(leaf): at for at, leaf in enumerate(key.leaves)}
    order = tuple([position.get(id(leaf), -1) for leaf in call.leaves])
    if key.value is None or -1 in order:  # an argument that was converted must be converted at each call
        return
    known = replace(known, order=None if order == tuple(range(len(key.leaves))) else order)
    of_epochs = _made.setdefault(target, WeakKeyDictionary())
    known_calls = of_epochs.setdefault(session.epoch, {})
    if len(known_calls) >= _MOST:
        known_calls.clear()
    known_calls[key.value] = known


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
