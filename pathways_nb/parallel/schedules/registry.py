"""The schedules that there are, by name: the built-in ones and the user's, all made the same way.

A generator is a function of the sizes that it knows (``devices`` and ``microbatches``, and ``chunks`` or
``token_slices`` if it has them) that returns each device's actions in order.
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
from pathways_nb.parallel.schedules.closed_forms import ClosedForm, Size

SIZES = Size._fields
Generator = Callable[..., Any]


@dataclass(frozen=True)
class ScheduleKind:
    """A schedule that can be made in any size.

    Args:
        name: what people call it, on the command line, too. generate: the function that makes it.
        bubble: seconds that every device idles, makespan less m(F+B), as a function of (size, times).
        peak: the largest number of microbatches whose activations a device holds, as a function of (size, device).
    """

    name: str
    generate: Generator
    bubble: ClosedForm | None = None
    peak: ClosedForm | None = None

    @property
    def about(self) -> str:
        """One line about it."""
        return (inspect.getdoc(self.generate) or "").partition("\n")[0]

    @cached_property
    def defaults(self) -> dict[str, int]:
        """The sizes that it has of its own accord: of ``chunks`` and ``token_slices``, those that it knows."""
        parameters = inspect.signature(self.generate).parameters
        return {name: int(parameters[name].default) for name in SIZES[2:] if name in parameters}

    def size(self, devices: int, microbatches: int, chunks: int | None, token_slices: int | None) -> Size:
        """The size that is asked for.

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
                raise UsageError(f"{said} {_having(name)}")
        if math.prod(size.values()) > _MOST:
            many = f"{math.prod(size.values()):,} forward passes"
            raise UsageError(f"schedule {self.name!r} would have {many}; at most {_MOST:,} are made. Take fewer.")
        return Size(**size)

    def rows(self, size: Size) -> Any:
        """What it generates for this size."""
        return self.generate(**{name: getattr(size, name) for name in self._sizes})

    def require(self, asked: Size, made: Size) -> None:
        """That it made what was asked for, of the sizes that it knows.

        Raises:
            ScheduleError: it did not.
        """
        for name in self._sizes:
            want, have = getattr(asked, name), getattr(made, name)
            if want != have:
                said = f"schedule {self.name!r} was asked for {name}={want} and made one of {name}={have}"
                raise ScheduleError(f"{said}. Let its generator heed {name}.")

    @property
    def _sizes(self) -> tuple[str, ...]:
        return *SIZES[:2], *self.defaults


_MOST = 2_000_000
"""Forward passes of a schedule: so many are made in some seconds."""

_kinds: dict[str, ScheduleKind] = {}
_watching: WeakSet[Any] = WeakSet()


def register_schedule(
    name: str, bubble: ClosedForm | None = None, peak: ClosedForm | None = None
) -> Callable[[Generator], Generator]:
    """Give the generator below a name: for ``pw.schedule``, the command line, the explorer and the checker.

    The generator takes ``devices`` and ``microbatches`` (and ``chunks`` or ``token_slices`` if it has them, with their
    defaults) and returns for each device a list of actions, or of texts such as ``"0F0"``. A name of yours that is
    registered again is replaced, so that a cell can be run again.

    Args:
        name: of the schedule. bubble, peak: its closed forms, if it has any; see ``ScheduleKind``.

    Raises:
        UsageError: no name or that of a built-in schedule, a function without the parameters ``devices`` and
            ``microbatches``, or one whose ``chunks`` or ``token_slices`` have no default.
    """
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"register_schedule({name!r}): write a name, as in @pw.register_schedule('mine').")

    def register(generate: Generator) -> Generator:
        if name in _kinds and _is_built_in(_kinds[name].generate) and not _is_built_in(generate):
            raise UsageError(f"register_schedule({name!r}): that is a built-in schedule; give yours another name.")
        _check(f"register_schedule({name!r})", generate)
        _kinds[name] = ScheduleKind(name, generate, bubble, peak)
        for one in list(_watching):
            one.registered()
        return generate

    return register


def _is_built_in(generate: Generator) -> bool:
    return generate.__module__.startswith("pathways_nb.")


def _check(where: str, generate: Generator) -> None:
    """That a generator takes its sizes as all do."""
    signature = inspect.signature(generate)
    said = f"{where}: {generate.__name__}{signature}"
    for size in SIZES[:2]:
        if size not in signature.parameters:
            raise UsageError(f"{said} lacks the parameter {size!r}; add it.")
    for size in SIZES[2:]:
        if size in signature.parameters and not is_index(signature.parameters[size].default):
            raise UsageError(f"{said}: give {size!r} the number that is meant if nobody says one, as in {size}=2.")


def kind_of(name: str) -> ScheduleKind:
    """The schedule of this name.

    Raises:
        UsageError: there is none; the nearest names are listed.
    """
    if name not in _kinds:
        meant = " or ".join(nearest(str(name), _kinds))
        did_you_mean = f" Did you mean {meant}?" if meant else ""
        raise UsageError(f"There is no schedule {name!r}.{did_you_mean} All: {', '.join(_kinds)}.")
    return _kinds[name]


def known(name: str | None) -> ScheduleKind | None:
    """The schedule of this name, if there is one."""
    return None if name is None else _kinds.get(name)


def watch(one: Any) -> None:
    """Call ``one.registered()`` whenever a schedule is registered, for as long as it lives."""
    _watching.add(one)


def schedules() -> list[str]:
    """The names of all pipeline schedules, for ``pw.schedule`` and the command line: the built-in ones, then yours."""
    return list(_kinds)


def _having(size: str) -> str:
    having = [name for name, kind in _kinds.items() if size in kind.defaults]
    return f"Schedules with {size}: {', '.join(having)}."
