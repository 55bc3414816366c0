"""The controller's log: a snapshot of its state, and the events that came after it, with what it answered.

The core decides by its state, an event and a time alone, so a copy of the state that is given the same events gives the
same instructions: whatever happened, also at a fault, can be played again without devices. A log is bounded: when the
bound is reached, a new snapshot is taken and the oldest part is forgotten.

Noting an event costs an append. Digests are only made when a log is compared or saved.
"""

from __future__ import annotations

import builtins
import dis
import hashlib
import operator
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from pathways_nb.controller.messages import Event, Instruction, Released, Submitted
from pathways_nb.controller.policies import Policy, fifo, priority, stride
from pathways_nb.controller.snapshot import Snapshot
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import UsageError
from pathways_nb.plan.run_numbers import shown
from pathways_nb.util.words import counted

MOST = 5_000
"""Events after which a new snapshot is taken; fewer if they name many buffers."""
_BUFFERS = 64
"""Number of buffers that count as one event more: a training step names thousands, and each is a number to keep."""
_PURE = ("math", "_operator", "operator", "itertools", "functools", "_functools", "bisect", "_bisect", "pathways_nb")
"""Modules of which a policy may use anything and still give the same answers."""
_DIFFERS = ("id", "hash", "input", "open", "globals", "vars", "eval", "exec", "__import__", "cache", "lru_cache")
"""Functions of those modules that do not give the same answers, or keep them."""
_CHANGES = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "IMPORT_NAME")


class Entry(NamedTuple):
    """An event that the core handled.

    Args:
        now: when, in seconds of the controller's clock.
        event: the event.
        digest: of the instructions that followed, as ``digest_of`` returns it; empty if nothing was recorded then.
    """

    now: float
    event: Event
    digest: str


@dataclass(frozen=True, eq=False)
class Log:
    """A snapshot, and all events after it; nothing changes it.

    Args:
        snapshot: the state before the first entry.
        noted: the times and events, with the instructions that followed or the digest of these; an empty one where
            they were not kept.
        why_not: why it cannot be played again, in words; empty if it can.
    """

    snapshot: Snapshot
    noted: Sequence[tuple[float, Event, Sequence[Instruction] | str]]
    why_not: str = ""

    @cached_property
    def entries(self) -> list[Entry]:
        """The events, with digests of the instructions."""
        return [
            Entry(now, event, made if isinstance(made, str) else digest_of(made)) for now, event, made in self.noted
        ]

    def replay(self) -> Iterator[tuple[Entry, list[Instruction], StateMachine]]:
        """Yield each entry with the instructions that the core gives again, and its state then.

        Raises:
            UsageError: the log cannot be played again, or the core answers otherwise, with the first such event.
        """
        if self.why_not:
            raise UsageError(f"this log cannot be played again: {self.why_not}.")
        machine = self.snapshot.machine()
        for number, entry in enumerate(self.entries):
            made = machine.handle(entry.event, entry.now)
            if entry.digest and (found := digest_of(made)) != entry.digest:
                raise UsageError(
                    f"replay: event {number} of {len(self.entries)}, {_named(entry.event)} at {entry.now:.6f} s, is "
                    f"answered otherwise ({named(made)}, digest {found}, not {entry.digest}): the log is of another "
                    f"version of pathways_nb, or was changed."
                )
            yield entry, made, machine

    def __repr__(self) -> str:
        return f"<log of {counted(len(self.noted), 'event')}{f'; {self.why_not}' if self.why_not else ''}>"


def digest_of(instructions: Sequence[Instruction]) -> str:
    """Return a short text that is equal for equal instructions; errors count by their class and words."""
    return hashlib.blake2b(repr(instructions).encode(), digest_size=8).hexdigest()


def named(instructions: Sequence[Instruction]) -> str:
    """Return the names of instructions in words."""
    return ", ".join(type(one).__name__ for one in instructions) or "nothing"


def _named(event: Event) -> str:
    run = getattr(event, "run", None)
    return f"{type(event).__name__}{'' if run is None else f' of run {shown(run)}'}"


_bare = operator.attrgetter("bare")


@dataclass(eq=False)
class _Part:
    """A snapshot and what came after it."""

    snapshot: Snapshot
    flat: list[Any] = field(default_factory=list)
    """Time, event and instructions of one after another: a tuple of each would be one more for Python to collect."""
    size: int = 0
    """Number of events, and of ``_BUFFERS`` that they name."""

    @property
    def noted(self) -> list[tuple[float, Event, Sequence[Instruction] | str]]:
        """The times, events and instructions."""
        flat = self.flat.copy()
        return list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))


@dataclass(eq=False)
class Beginning:
    """Where a recording begins in a log: before the first event that is handled after it was asked for."""

    part: _Part | None = None


class Logbook:
    """Hands events to a core, and keeps its log; used by the thread in which the core decides.

    Args:
        machine: the core.
        most: events after which a new snapshot is taken; up to twice as many are kept.
    """

    def __init__(self, machine: StateMachine, most: int = MOST):
        self.machine, self.most = machine, most
        self._parts: list[_Part] = []
        self._asked: list[Beginning] = []
        self._recordings = 0
        self._snapshot()

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Let the core handle an event, and keep both; see ``StateMachine.handle``."""
        if self._asked:
            self._begin()
        made = self.machine.handle(event, now)
        buffers = 0
        if isinstance(event, Submitted):
            event, buffers = _without_places(event), len(event.arguments) + len(event.results)
        elif isinstance(event, Released):
            buffers = len(event.buffers)
        part = self._parts[-1]
        part.flat += (now, event, made if self._recordings else "")
        part.size += 1 + buffers // _BUFFERS
        if part.size >= self.most:
            self._snapshot()
        return made

    def begin(self) -> Beginning:
        """Ask for a snapshot before the next event, from which a recording begins; any thread may.

        Returns:
            What ``end`` takes; until then instructions are kept, whose digests check a log that is played again.
        """
        asked = Beginning()
        self._asked.append(asked)
        return asked

    def end(self, beginning: Beginning) -> Log:
        """Return the log of a recording that ends, and keep no more instructions for it."""
        found = self.log(beginning)
        if beginning.part is not None:
            self._recordings -= 1
        return found

    def log(self, since: Beginning | None = None) -> Log:
        """Return what happened since a beginning, as far as it is kept, or all; nothing changes it later.

        Any thread may ask, also while the core decides: what it decides then may be in the log or not.
        """
        parts = list(self._parts)
        if since is not None and since.part is None:  # nothing has happened since
            parts = [_Part(parts[-1].snapshot)]
        elif since is not None and since.part in parts:
            parts = parts[parts.index(since.part) :]
        noted = [one for part in parts for one in part.noted]
        return Log(parts[0].snapshot, noted, why_not(self.machine.policy))

    def _begin(self) -> None:
        if self._parts[-1].flat:
            self._snapshot()
        while self._asked:
            self._asked.pop().part = self._parts[-1]
            self._recordings += 1

    def _snapshot(self) -> None:
        self._parts.append(_Part(Snapshot.of(self.machine, _bare)))
        while sum(part.size for part in self._parts[1:]) >= self.most:
            del self._parts[0]


def _without_places(event: Submitted) -> Submitted:
    """Return a call of the bare plan; spelled out, since ``dataclasses.replace`` takes four times as long."""
    return Submitted(
        event.run, event.client, event.plan.bare, event.arguments, event.results, event.result_bytes, event.footprint,
        event.moved,
    )  # fmt: skip


def why_not(policy: Policy) -> str:
    """Return why decisions of a policy cannot be repeated, in words; empty if they can.

    A policy of the user's may draw numbers or keep state. It is not called to find out, since that would change what it
    keeps: its code is read. What cannot be seen to be harmless counts as state.
    """
    if policy in (fifo, priority, stride):
        return ""
    name = getattr(policy, "__name__", type(policy).__name__)
    seen: set[types.FunctionType] = set()
    found = _impure(policy, seen)
    return f"the policy {name!r} {found}, so it may be random or keep state" if found else ""


def _impure(function: object, seen: set[types.FunctionType]) -> str:
    """Return what a function uses that may differ from call to call, in words; empty for nothing."""
    if not isinstance(function, types.FunctionType):
        return "is no plain function"
    if function in seen:
        return ""
    seen.add(function)
    held = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    named = {name: cell.cell_contents for name, cell in held.items()}
    for code in _codes(function.__code__):
        for one in dis.get_instructions(code):
            if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                named[one.argval] = function.__globals__.get(one.argval, vars(builtins).get(one.argval))
            elif one.opname in _CHANGES or (one.opname == "STORE_DEREF" and one.argval in held):
                return f"changes or imports {one.argval!r}"
    for number, value in enumerate((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())):
        named[f"default {number}"] = value
    for name, value in named.items():
        if value is function:
            return "refers to itself, and a function's attributes may change"
        if found := _changing(value, seen):
            return f"uses {name!r}, {found}"
    return ""


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function and of all functions and comprehensions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _changing(value: object, seen: set[types.FunctionType]) -> str:
    """Return why a value that a policy uses may differ from call to call, in words; empty if it does not."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return ""
    if isinstance(value, (tuple, frozenset)):
        return next((found for one in value if (found := _changing(one, seen))), "")
    if isinstance(value, types.ModuleType):
        return "" if value.__name__.partition(".")[0] in _PURE else f"the module {value.__name__}"
    pure = (getattr(value, "__module__", None) or "").partition(".")[0] in (*_PURE, "builtins")
    if pure and isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
        return "which differs" if getattr(value, "__name__", "") in _DIFFERS else ""
    if isinstance(value, types.FunctionType):
        found = _impure(value, seen)
        return f"which {found}" if found else ""
    return "which may change"
