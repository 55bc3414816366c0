"""The registry of passes, by name: those that every step has and the user's, all registered the same way.

A pass is a function of ``StepCollectives`` and of settings, which yields edits; its signature says which settings it
has. Passes run in one order: each behind the one that it names as ``after``.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from weakref import WeakSet

from pathways_nb.errors import PathwaysError, PlanError, UsageError, did_you_mean
from pathways_nb.parallel.fsdp.passes.edits import Edit, Make, StepCollectives, checked
from pathways_nb.parallel.fsdp.passes.graph_edits import collectives_of, edited
from pathways_nb.parallel.fsdp.step_graph import StepGraph

Value = int | float | bool | str
Settings = tuple[tuple[str, Any], ...]
"""Names and values of a pass's settings."""
_MOST_TRIED = 16
"""The most settings of one pass that a search tries."""


@dataclass(frozen=True, eq=False)
class StepPass:
    """A registered pass.

    Args:
        name: as plans have it.
        make: the function.
        after: the pass behind which it runs; empty for the first.
        edits: what the function gets: the collectives, of which it yields edits, or the ``StepGraph`` itself, of which
            it returns another.
        tried: values that a search tries, by setting.
        is_timed: whether the time of a step depends on it. What completes gradients last, and what binds the compiler
            to an order, is taken for granted when a plan is timed.
    """

    name: str
    make: Callable[..., Any]
    after: str = ""
    edits: Literal["collectives", "graph"] = "collectives"
    tried: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    is_timed: bool = True

    @cached_property
    def is_built_in(self) -> bool:
        """Whether every step has it."""
        return self.make.__module__.startswith("pathways_nb.")

    @property
    def defaults(self) -> dict[str, Any]:
        """The settings that it has, with their defaults."""
        return {name: one.default for name, one in itertools.islice(_parameters(self.make).items(), 1, None)}

    @property
    def choices(self) -> list[Settings]:
        """The settings that a search tries."""
        rows = itertools.product(*([(name, value) for value in values] for name, values in self.tried.items()))
        return [tuple(row) for row in itertools.islice(rows, _MOST_TRIED)]

    def edits_of(self, step: StepCollectives, *args: Any, **settings: Any) -> list[Edit]:
        """Return its edits of the collectives of a step.

        Raises:
            PlanError: they cannot be made.
        """
        with self._named():
            made = self.make(step, *args, **settings)
            made = list(made) if isinstance(made, Iterator) else made
        return checked(self.name, step, made, self.is_built_in)

    def __call__(self, graph: StepGraph, *args: Any, **settings: Any) -> StepGraph:
        """Return a step after the pass.

        Raises:
            PlanError: its edits cannot be made, or its graph is none that computes the same.
        """
        if self.edits == "collectives":
            return edited(graph, self.edits_of(collectives_of(graph), *args, **settings))
        with self._named():
            found = self.make(graph, *args, **settings)
        _check_graph(self.name, graph, found)
        return found

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the pass in the error of a function of the user's, whose traceback has the line."""
        try:
            yield
        except PathwaysError:
            raise
        except Exception as error:
            if self.is_built_in:
                raise
            raise PlanError(f"pass {self.name!r} raised {type(error).__name__}: {error}") from error


Stage = tuple[StepPass, Settings]
"""A pass with its settings."""

_passes: dict[str, StepPass] = {}
# Weak, so that an explorer whose cell was deleted is not kept alive by the registry.
_watching: WeakSet[Any] = WeakSet()


def register_pass(
    name: str, *, after: str, edits: Literal["collectives", "graph"] = "collectives",
    search: Mapping[str, Sequence[Value]] | None = None,
) -> Callable[[Make], Callable[..., StepGraph]]:  # fmt: skip
    """Return a decorator that registers a pass for plans, searches and the explorer of sharded steps.

    The pass is a function of ``step``, whose ``gathers`` and ``reductions`` it reads, and of settings with defaults;
    it yields edits, ``step.move(gather, before=…)`` or ``step.merge(…)`` or ``step.copy(…)``, of one kind. A plan runs
    it if it names it, ``plan.with_pass(name, distance=2)``, and a search tries it. The decorated function takes a
    ``StepGraph`` in place of ``step`` and returns the one after the pass. Registering your own name again replaces it,
    so that a cell can be run again.

    Args:
        name: of the pass, one word.
        after: the name of the pass behind which it runs: ``"sink"``, ``"regather"``, ``"bucket"``, ``"prefetch"`` or
            one of yours; for a function of the graph also ``"finish"`` or ``"pace"``, which keep the order for good.
        edits: ``"graph"`` for a function from a ``StepGraph`` to a ``StepGraph`` that computes the same. A search
            evaluates it by the graph, which takes many times longer.
        search: values that a search tries, by setting; by default the defaults.

    Raises:
        UsageError: no such name can be had, ``after`` is no pass, or the function's parameters do not fit.
    """
    where = f"register_pass({name!r})"
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError(f"{where}: write a name of one word, as in @pw.register_pass('late', after='bucket').")
    if name in _passes and _passes[name].is_built_in:
        raise UsageError(f"{where}: that is a pass of every step; give yours another name.")
    if after not in _passes or after == name:
        raise UsageError(f"{where}: after={after!r} is no pass.{did_you_mean(after, _passes)} All: {_listed()}.")
    if edits not in ("collectives", "graph"):
        raise UsageError(f"{where}: edits={edits!r}; write 'collectives', or 'graph' for a function of a StepGraph.")

    if edits == "collectives" and _runs_behind(after, "finish"):
        raise UsageError(f"{where}: after={after!r} is too late for edits; write after='prefetch', or edits='graph'.")

    def register(make: Make) -> Callable[..., StepGraph]:
        """Return the pass as a function of a step's graph, after it was registered."""
        _check_settings(where, make, search or {})
        made = StepPass(name, make, after, edits, {one: tuple(values) for one, values in (search or {}).items()})
        if _runs_behind(after, name):
            raise UsageError(f"{where}: after={after!r} runs behind {name!r} itself.")
        _passes.pop(name, None)
        _passes[name] = made
        for one in list(_watching):  # a copy: registered() may create or drop an explorer
            one.registered()
        return _as_function(made)

    return register


def built_in(name: str, after: str = "", is_timed: bool = True) -> Callable[[Make], Callable[..., StepGraph]]:
    """Return a decorator that registers a pass that every step has."""

    def register(make: Make) -> Callable[..., StepGraph]:
        """Return the pass as a function of a step's graph, after it was registered."""
        _passes[name] = StepPass(name, make, after, is_timed=is_timed)
        return _as_function(_passes[name])

    return register


def pass_of(name: str) -> StepPass:
    """Return the pass of a name.

    Raises:
        PlanError: there is none.
    """
    if name not in _passes:
        raise PlanError(
            f"there is no pass {name!r}.{did_you_mean(name, _passes)} All: {_listed()}. If it is yours, run the cell "
            f"with @pw.register_pass({name!r}, …) first."
        )
    return _passes[name]


def own_passes() -> list[StepPass]:
    """Return the passes that the user registered, in the order in which they run."""
    return [one for one in ordered() if not one.is_built_in]


def watch(one: Any) -> None:
    """Call ``one.registered()`` whenever a pass is registered, for as long as ``one`` is alive."""
    _watching.add(one)


def ordered() -> list[StepPass]:
    """Return all passes in the order in which they run: each behind its ``after`` and those registered before it."""

    def behind(name: str) -> Iterator[StepPass]:
        followers = [one for one in _passes.values() if one.after == name]
        # The user's come first: a pass "after bucket" runs directly behind it, in front of the built-in that follows.
        for one in sorted(followers, key=lambda one: one.is_built_in):
            yield one
            yield from behind(one.name)

    return list(behind(""))


def _as_function(made: StepPass) -> Callable[..., StepGraph]:
    @functools.wraps(made.make)
    def apply(graph: StepGraph, *args: Any, **settings: Any) -> StepGraph:
        return made(graph, *args, **settings)

    return apply


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(make).parameters


def _runs_behind(name: str, other: str) -> bool:
    """Return whether a pass runs behind another, directly or not."""
    while name:
        if name == other:
            return True
        name = _passes[name].after
    return False


def _check_settings(where: str, make: Make, search: Mapping[str, Sequence[Value]]) -> None:
    """Require a parameter for the step, and settings that can be written in a plan.

    Raises:
        UsageError: naming the parameter that does not fit.
    """
    parameters = list(_parameters(make).values())
    first, others = parameters[:1], parameters[1:]
    said = f"{where}: {getattr(make, '__name__', make)}{inspect.signature(make)}"
    if not first or first[0].kind not in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
        raise UsageError(f"{said} takes no step; its first parameter is the step.")
    for one in others:
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) or not isinstance(one.default, Value):
            raise UsageError(f"{said}: give {one.name!r} a number, a truth or a text as its default; plans have those.")
    for name, values in search.items():
        known = [one.name for one in others]
        if name not in known:
            raise UsageError(f"{said} has no setting {name!r} to search.{did_you_mean(name, known)}")
        listed = isinstance(values, Sequence) and not isinstance(values, str) and len(values) > 0
        if not listed or not all(isinstance(value, Value) for value in values):
            raise UsageError(f"{said}: search[{name!r}] is {values!r}; give the values to try, as in (1, 2, 4).")


def _check_graph(name: str, before: StepGraph, after: Any) -> None:
    """Check what can be checked of a pass that returns a graph: it is legal, and exchanges for the same parameters.

    Raises:
        PlanError: naming the pass.
    """
    if not isinstance(after, StepGraph):
        raise PlanError(f"pass {name!r} returned {type(after).__name__}, not the StepGraph after the pass.")
    try:
        after.check()
    except PlanError as error:
        raise PlanError(f"pass {name!r}: {error}") from None
    if (before.flat.inputs, before.flat.outputs) != (after.flat.inputs, after.flat.outputs):
        raise PlanError(f"pass {name!r} returned a graph with other inputs or outputs than it was given.")
    for word, are_gathers in (("gathers", True), ("reduces", False)):
        sides = [{param for op in graph.collectives if op.is_gather == are_gathers for param in op.carries}
                 for graph in (before, after)]  # fmt: skip
        if sides[0] != sides[1]:
            (first, *_) = before.names(sorted(sides[0] ^ sides[1]))
            verb = "no longer " if len(sides[0]) > len(sides[1]) else "also "
            raise PlanError(f"pass {name!r} returned a graph that {verb}{word} {first}; a pass computes the same.")


def _listed() -> str:
    return ", ".join(one.name for one in ordered())
