"""The registry of pipeline schedules, by name: built-in ones and the user's, all registered the same way.

A generator is a function of the sizes that it knows (``devices`` and ``microbatches``, and ``chunks`` or
``token_slices`` if it has them) that returns each device's actions in order. Its signature is the declaration: a size
with no parameter is a size the schedule does not have, and a default is the schedule's own default. What a generator
returns is checked when a ``Schedule`` is made of it, not at registration.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakSet

from pathways_nb.errors import ScheduleError, UsageError, is_index, nearest
from pathways_nb.parallel.schedules.closed_forms import ClosedForm, ScheduleSize

SIZES = ScheduleSize._fields
Generator = Callable[..., Any]


@dataclass(frozen=True)
class ScheduleKind:
    """A registered schedule, which can be made in any size.

    Args:
        name: as people type it, also on the command line.
        generate: the function that makes its rows.
        bubble: time that every device idles, makespan less m(F+B), as a function of (size, times).
        peak: the largest number of microbatches whose activations a device holds, as a function of (size, device).
    """

    name: str
    generate: Generator
    bubble: ClosedForm | None = None
    peak: ClosedForm | None = None

    @property
    def about(self) -> str:
        """The first line of the generator's docstring."""
        return (inspect.getdoc(self.generate) or "").partition("\n")[0]

    @cached_property
    def defaults(self) -> dict[str, int]:
        """Default values of ``chunks`` and ``token_slices``, those of the two that the generator has."""
        parameters = inspect.signature(self.generate).parameters
        return {name: int(parameters[name].default) for name in SIZES[2:] if name in parameters}

    def size(self, devices: int, microbatches: int, chunks: int | None, token_slices: int | None) -> ScheduleSize:
        """Return the requested size, with the schedule's own defaults filled in.

        Args:
            devices: number of devices, p.
            microbatches: number of microbatches, m.
            chunks: stages on each device, v; None for the default.
            token_slices: slices of each sequence, k; None for the default.

        Raises:
            UsageError: not whole numbers above 0, or a size that this schedule does not have.
        """
        asked = {"devices": devices, "microbatches": microbatches, "chunks": chunks, "token_slices": token_slices}
        size = {**self.defaults, **{name: number for name, number in asked.items() if number is not None}}
        for name, number in size.items():
            if not is_index(number) or number < 1:
                raise UsageError(f"schedule {self.name!r}: {name}={number!r} is no whole number above 0.")
            if name in SIZES[2:] and name not in self.defaults and number != 1:
                said = f"schedule {self.name!r} knows no {name}, so {name}={number} cannot be had; leave it away."
                having = ", ".join(other for other, kind in _kinds.items() if name in kind.defaults)
                raise UsageError(f"{said} Schedules with {name}: {having}.")
        # Before the generator is called, which would take long or use up the memory.
        if math.prod(size.values()) > _MOST:
            many = f"{math.prod(size.values()):,} forward passes"
            raise UsageError(f"schedule {self.name!r} would have {many}; at most {_MOST:,} are made. Take fewer.")
        return ScheduleSize(**size)

    def rows(self, size: ScheduleSize) -> Any:
        """Return what the generator makes for this size."""
        return self.generate(**{name: getattr(size, name) for name in self._sizes})

    def require(self, asked: ScheduleSize, made: ScheduleSize) -> None:
        """Require that the generator made the requested size, in the sizes that it has.

        Args:
            asked: the requested size.
            made: the size that its rows have.

        Raises:
            ScheduleError: they differ.
        """
        for name in self._sizes:
            want, have = getattr(asked, name), getattr(made, name)
            if want != have:
                said = f"schedule {self.name!r} was asked for {name}={want} and made one of {name}={have}"
                raise ScheduleError(f"{said}. Let its generator heed {name}.")

    @property
    def _sizes(self) -> tuple[str, ...]:
        """Names of the sizes that the generator takes."""
        return *SIZES[:2], *self.defaults


_MOST = 2_000_000
"""Most forward passes of a schedule; making so many takes some seconds."""

_kinds: dict[str, ScheduleKind] = {}
# Weak, so that an explorer whose cell was deleted is not kept alive by the registry.
_watching: WeakSet[Any] = WeakSet()


def register_schedule(
    name: str, bubble: ClosedForm | None = None, peak: ClosedForm | None = None
) -> Callable[[Generator], Generator]:
    """Return a decorator that registers a generator for ``pw.schedule``, command line, explorer and checker.

    The generator takes ``devices`` and ``microbatches`` (and ``chunks`` or ``token_slices`` if it has them, with their
    defaults) and returns for each device a list of actions, or of texts such as ``"0F0"``. Registering your own name
    again replaces it, so that a cell can be run again.

    Args:
        name: of the schedule.
        bubble: closed form of its bubble, if it has one; see ``ScheduleKind``.
        peak: closed form of its peak memory, if it has one; see ``ScheduleKind``.

    Raises:
        UsageError: no name or that of a built-in schedule, a function without the parameters ``devices`` and
            ``microbatches``, or one whose ``chunks`` or ``token_slices`` have no default.
    """
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"register_schedule({name!r}): write a name, as in @pw.register_schedule('mine').")

    def register(generate: Generator) -> Generator:
        """Return the generator unchanged, after it was registered."""
        # A built-in name always means the paper's schedule; a name of the user's own may be registered again.
        if name in _kinds and _is_built_in(_kinds[name].generate) and not _is_built_in(generate):
            raise UsageError(f"register_schedule({name!r}): that is a built-in schedule; give yours another name.")
        _check(f"register_schedule({name!r})", generate)
        _kinds[name] = ScheduleKind(name, generate, bubble, peak)
        # A copy: registered() may create or drop an explorer, which changes the set.
        for one in list(_watching):
            one.registered()
        return generate

    return register


def _is_built_in(generate: Generator) -> bool:
    return generate.__module__.startswith("pathways_nb.")


def _check(where: str, generate: Generator) -> None:
    """Require that a generator has the parameters for its sizes.

    Raises:
        UsageError: a size is missing, or has no default.
    """
    signature = inspect.signature(generate)
    said = f"{where}: {generate.__name__}{signature}"
    for size in SIZES[:2]:
        if size not in signature.parameters:
            raise UsageError(f"{said} lacks the parameter {size!r}; add it.")
    for size in SIZES[2:]:
        if size in signature.parameters and not is_index(signature.parameters[size].default):
            raise UsageError(f"{said}: give {size!r} the number that is meant if nobody says one, as in {size}=2.")


def kind_of(name: str) -> ScheduleKind:
    """Return the schedule kind of a name.

    Raises:
        UsageError: there is none; the nearest names are listed.
    """
    if name not in _kinds:
        meant = " or ".join(nearest(str(name), _kinds))
        did_you_mean = f" Did you mean {meant}?" if meant else ""
        raise UsageError(f"There is no schedule {name!r}.{did_you_mean} All: {', '.join(_kinds)}.")
    return _kinds[name]


def find_kind(name: str | None) -> ScheduleKind | None:
    """Return the schedule kind of a name; None if there is none."""
    return None if name is None else _kinds.get(name)


def watch(one: Any) -> None:
    """Call ``one.registered()`` whenever a schedule is registered, for as long as ``one`` is alive."""
    _watching.add(one)


def schedules() -> list[str]:
    """Return the names of all pipeline schedules that ``pw.schedule`` knows: built-in ones, then yours."""
    return list(_kinds)
