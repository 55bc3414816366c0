"""The passes with their settings that carry a plan out: those of every step, and those of the user's that it names.

A search makes and compares thousands of plans, so it has them as ``IndexedPlan``: parameters by position, hashable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pathways_nb.errors import PlanError, did_you_mean
from pathways_nb.parallel.fsdp.passes.pass_registry import (
    ConfiguredPass,
    Settings,
    Value,
    ordered,
    pass_of,
    wrong_value,
)
from pathways_nb.parallel.fsdp.step_graph import StepGraph

Partition = tuple[tuple[int, ...], ...]
"""Positions of parameters, by bucket, in the order in which they are used."""


@dataclass(frozen=True)
class PassChoice:
    """A pass of the user's in a plan.

    Args:
        name: of the pass.
        settings: names and values of those that were given; the others have the defaults of the pass.
    """

    name: str
    settings: tuple[tuple[str, Value], ...] = ()

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Any]) -> PassChoice:
        """Return the choice of a pass with these settings, in the order of its parameters.

        Raises:
            PlanError: there is no such pass or setting, or the value is of another type than its default.
        """
        cls(name, tuple(settings.items())).check()
        defaults = pass_of(name).defaults
        # 2.0 is written 2 where whole numbers are meant: both would be one plan, and two to the pass.
        whole = {one: int(value) if type(defaults[one]) is int else value for one, value in settings.items()}
        return cls(name, tuple((one, whole[one]) for one in defaults if one in whole))

    @classmethod
    def read(cls, text: str) -> PassChoice:
        """Return the choice that ``str`` wrote, such as ``"late count=2"``.

        Raises:
            PlanError: there is no such pass or setting, or a value cannot be read.
        """
        name, *pairs = text.split() or [""]
        defaults, settings = pass_of(name).defaults, dict[str, Any]()
        for pair in pairs:
            setting, equals, value = pair.partition("=")
            if not equals or not value:
                raise PlanError(f"pass {name!r}: {pair!r} is no setting; write name=value.")
            settings[setting] = _value(value, defaults.get(setting))
        return cls.of(name, settings)

    def check(self) -> None:
        """Check that the pass is registered and has these settings; raises as ``of`` does."""
        found = pass_of(self.name)
        if found.is_built_in:
            raise PlanError(f"pass {self.name!r} is one that every step has; a plan names only passes of yours.")
        for name, value in self.settings:
            if name not in found.defaults:
                known = ", ".join(found.defaults) or "none"
                raise PlanError(
                    f"pass {self.name!r} has no setting {name!r}.{did_you_mean(name, found.defaults)} Its: {known}."
                )
            if problem := wrong_value(value, found.defaults[name]):
                raise PlanError(f"pass {self.name!r}: {name}={value!r} {problem}.")

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.settings)])


def text_of_passes(passes: Iterable[PassChoice]) -> str:
    """Return passes in one line, such as ``"late count=2; other"``."""
    return "; ".join(map(str, passes))


def _value(text: str, like: Any) -> Any:
    """Return the value that a text means where values are like another one; the text if it means none."""
    if isinstance(like, str):  # a text that looks like a number stays one
        return text
    for value, means in ((True, "True"), (False, "False")):
        if text == means:
            return value
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    return text


@dataclass(frozen=True)
class IndexedPlan:
    """A plan whose parameters are positions: what the passes of a step are told.

    Args:
        forward: buckets of the forward pass.
        backward: buckets of the backward pass.
        prefetch: how many gathers are under way before their turn.
        kept: parameters that stay gathered.
        own: passes of the user's.
    """

    forward: Partition
    backward: Partition
    prefetch: int
    kept: frozenset[int] = frozenset()
    own: tuple[PassChoice, ...] = ()

    @property
    def needs_graph(self) -> bool:
        """Whether a pass of the plan says no edits, so that only the step's graph tells its time."""
        return any(pass_of(one.name).edits == "graph" for one in self.own)


def configured_passes(plan: IndexedPlan, gathers_again: bool) -> tuple[ConfiguredPass, ...]:
    """Return the passes that carry out a plan, with their settings, in their order.

    Args:
        plan: the plan.
        gathers_again: whether parameters may be gathered again for the backward pass.
    """
    settings: dict[str, Settings] = {
        "sink": (),
        "regather": (("keep", plan.kept),),
        "bucket": (("forward", plan.forward), ("backward", plan.backward)),
        "prefetch": (("distance", plan.prefetch),),
        "finish": (),
        "pace": (),
    }
    if not gathers_again:  # nothing is repeated, whatever a plan keeps
        del settings["regather"]
    # The user's own cannot have the name of a built-in pass, so nothing is replaced.
    settings |= {one.name: one.settings for one in plan.own}
    return tuple((one, settings[one.name]) for one in ordered() if one.name in settings)


def carried_out(graph: StepGraph, plan: IndexedPlan, gathers_again: bool) -> Iterator[tuple[str, StepGraph]]:
    """Yield a traced step after each pass that carries out a plan, with the name of the pass.

    Args:
        graph: the step before any pass.
        plan: the plan.
        gathers_again: whether parameters may be gathered again for the backward pass.
    """
    for one, settings in configured_passes(plan, gathers_again):
        yield one.name, (graph := one(graph, **dict(settings)))
