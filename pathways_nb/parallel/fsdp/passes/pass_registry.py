"""The registry of passes, by name: those that every step has and the user's, all registered the same way.

A pass is a function of ``StepCollectives`` and of settings, which yields edits; its signature says which settings it
has. Passes run in one order: each behind the one that it names as ``after``.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from weakref import WeakSet

from pathways_nb.errors import PlanError, UsageError, did_you_mean
from pathways_nb.parallel.fsdp.passes.edits import Edit, Gather, Make, StepCollectives, checked
from pathways_nb.parallel.fsdp.passes.graph_checks import check_graph
from pathways_nb.parallel.fsdp.passes.graph_edits import collectives_of, edited
from pathways_nb.parallel.fsdp.step_graph import StepGraph
from pathways_nb.util.json_text import LARGEST
from pathways_nb.util.words import a_type_of

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
        is_built_in: whether every step has it.
    """

    name: str
    make: Callable[..., Any]
    after: str = ""
    edits: Literal["collectives", "graph"] = "collectives"
    tried: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    is_timed: bool = True
    is_built_in: bool = False

    @property
    def defaults(self) -> dict[str, Any]:
        """The settings that it has, with their defaults."""
        _, *settings = inspect.signature(self.make).parameters.values()
        return {one.name: one.default for one in settings}

    @property
    def choices(self) -> list[Settings]:
        """The settings that a search tries."""
        rows = itertools.product(*([(name, value) for value in values] for name, values in self.tried.items()))
        return list(rows)

    def edits_of(self, step: StepCollectives, /, *args: Any, **settings: Any) -> list[Edit]:
        """Return its edits of the collectives of a step.

        Raises:
            PlanError: they cannot be made.
        """
        with self._naming_errors():
            made: Any = self.make(step, *args, **settings)
            made = list(made) if isinstance(made, Iterator) else made  # a generator runs here, where its error is named
        found = checked(self.name, step, made, self.is_built_in)
        # Its unpack, in the forward pass, reads what a bucket makes: a copy of it would have no reader behind.
        merges = (edit for edit in found if edit.kind == "merge" and isinstance(edit.what[0], Gather))
        if not self.is_built_in and not _runs_behind(self.after, "regather") and next(merges, None) is not None:
            raise PlanError(
                f'pass {self.name!r}: it merges gathers in front of "regather", which could not gather them again. '
                f"Register it with after='regather'."
            )
        return found

    def __call__(self, graph: StepGraph, /, *args: Any, **settings: Any) -> StepGraph:
        """Return a step after the pass.

        Raises:
            UsageError: it was not given a step's graph.
            PlanError: its edits cannot be made, or its graph is none that computes the same.
        """
        if not isinstance(graph, StepGraph):
            raise UsageError(
                f"pass {self.name!r} was given {a_type_of(graph)}; give it a step's graph, such as step.graph(*batch)."
            )
        if self.edits == "collectives":
            return edited(graph, self.edits_of(collectives_of(graph), *args, **settings))
        with self._naming_errors():
            found = self.make(graph, *args, **settings)
        check_graph(self.name, graph, found)
        return found

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        """Name the pass in the error of a function of the user's, whose traceback has the line."""
        try:
            yield
        except PlanError:
            raise
        except Exception as error:
            if self.is_built_in:
                raise
            raise PlanError(f"pass {self.name!r} raised {type(error).__name__}: {error}") from error


ConfiguredPass = tuple[StepPass, Settings]  # hashable, so that sketches are found again
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
    if not isinstance(after, str) or after not in _passes or after == name:
        near = did_you_mean(after, _passes) if isinstance(after, str) else " Give its name."
        raise UsageError(f"{where}: after={after!r} is no pass.{near} All: {_listed()}.")
    if edits not in ("collectives", "graph"):
        raise UsageError(f"{where}: edits={edits!r}; write 'collectives', or 'graph' for a function of a StepGraph.")
    # ``finish`` puts what completes gradients behind everything, and ``pace`` keeps orders: an edit behind them would
    # undo both.
    if edits == "collectives" and _runs_behind(after, "finish"):
        raise UsageError(f"{where}: after={after!r} is too late for edits; write after='prefetch', or edits='graph'.")
    if _runs_behind(after, name):
        raise UsageError(f"{where}: after={after!r} runs behind {name!r} itself.")
    # A name that is registered again takes its followers along to the new place.
    followers = [one.name for one in ordered() if one.edits == "collectives" and _runs_behind(one.after, name)]
    if followers and _runs_behind(after, "finish"):
        raise UsageError(f"{where}: {followers[0]!r} runs behind it, for whose edits after={after!r} is too late.")
    tried = _tried(where, search)

    def register(make: Make) -> Callable[..., StepGraph]:
        """Return the pass as a function of a step's graph, after it was registered."""
        _check_settings(where, make, tried)
        _passes[name] = made = StepPass(name, make, after, edits, tried)  # one of before keeps its place
        for one in list(_watching):  # a copy: registered() may create or drop an explorer
            one.registered()
        return _as_function(made)

    return register


def built_in(name: str, after: str = "", is_timed: bool = True) -> Callable[[Make], Callable[..., StepGraph]]:
    """Return a decorator that registers a pass that every step has."""

    def register(make: Make) -> Callable[..., StepGraph]:
        """Return the pass as a function of a step's graph, after it was registered."""
        _passes[name] = StepPass(name, make, after, is_timed=is_timed, is_built_in=True)
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
    """Return all passes in the order in which they run: each behind its ``after``, the user's before the built-in."""

    def behind(name: str) -> Iterator[StepPass]:
        followers = [one for one in _passes.values() if one.after == name]
        # The user's come first: a pass "after bucket" runs directly behind it, in front of the built-in that follows.
        for one in sorted(followers, key=lambda one: one.is_built_in):
            yield one
            yield from behind(one.name)

    return list(behind(""))


def _as_function(made: StepPass) -> Callable[..., StepGraph]:
    @functools.wraps(made.make)
    def apply(graph: StepGraph, /, *args: Any, **settings: Any) -> StepGraph:
        return made(graph, *args, **settings)

    return apply


def _runs_behind(name: str, other: str) -> bool:
    """Return whether a pass runs behind another, directly or not."""
    while name:
        if name == other:
            return True
        name = _passes[name].after
    return False


def _tried(where: str, search: Any) -> dict[str, tuple[Value, ...]]:
    """Return the values that a search tries, by setting.

    Raises:
        UsageError: they are not written so, or are too many.
    """
    if search is None:
        return {}
    if not isinstance(search, Mapping):
        raise UsageError(f"{where}: search={search!r}; give values by setting, as in search={{'count': (1, 2, 4)}}.")
    for name, values in search.items():
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise UsageError(f"{where}: search[{name!r}] is {values!r}; give the values to try, as in (1, 2, 4).")
    if (count := math.prod(map(len, search.values()))) > _MOST_TRIED:
        raise UsageError(f"{where}: search= has {count} combinations, of which at most {_MOST_TRIED} are tried.")
    return {name: tuple(values) for name, values in search.items()}


def _check_settings(where: str, make: Make, tried: Mapping[str, Sequence[Value]]) -> None:
    """Require a parameter for the step, and settings that can be written in a plan.

    Raises:
        UsageError: naming the parameter that does not fit.
    """
    if not callable(make) or isinstance(make, type):
        raise UsageError(f"{where}: {make!r} is no function of a step.")
    parameters = list(inspect.signature(make).parameters.values())
    first, others = parameters[:1], {one.name: one for one in parameters[1:]}
    said = f"{where}: {getattr(make, '__name__', make)}{inspect.signature(make)}"
    if not first or first[0].kind not in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
        raise UsageError(f"{said} takes no step; its first parameter is the step.")
    for one in others.values():
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) or type(one.default) not in _KINDS:
            raise UsageError(f"{said}: give {one.name!r} a number, a truth or a text as its default; plans have those.")
    for name, values in tried.items():
        if name not in others:
            raise UsageError(f"{said} has no setting {name!r} to search.{did_you_mean(name, others)}")
        for value in values:
            if problem := wrong_value(value, others[name].default):
                raise UsageError(f"{said}: search[{name!r}] has {value!r}, which {problem}.")


def wrong_value(value: Any, default: Any) -> str:
    """Return why a setting cannot have a value, in words; empty if it can.

    Args:
        value: the value.
        default: of the setting, whose kind it must have.
    """
    kind = _KINDS[type(default)]
    # By kind and not by type: 2 is a number where the default is 0.5. True is none, though Python counts with it.
    if _KINDS.get(type(value)) is not kind:
        return f"is no {kind}, as {default!r} is"
    if type(default) is int and type(value) is float and not value.is_integer():
        return f"is no whole number, as {default!r} is"
    if isinstance(value, (int, float)) and not abs(value) <= LARGEST:
        return "is too large a number for a plan"
    # A plan's text separates settings by blanks and passes by ";", and has no quotes.
    if isinstance(value, str) and not re.fullmatch(r"[\w.+-]+", value):
        return "is not one word, as texts of a plan are"
    return ""


_KINDS = {bool: "truth", str: "text", int: "number", float: "number"}
"""What kind of value a setting takes."""


def _listed() -> str:
    return ", ".join(one.name for one in ordered())
