"""The controller's log: a snapshot of its state, and the events that came after it, with what it answered.

The core decides by its state, an event and a time alone, so a copy of the state that is given the same events gives the
same instructions: whatever happened, also at a fault, can be played again without devices. A log is bounded: when the
bound is reached, a new snapshot is taken and the oldest part is forgotten.

Noting an event costs an append. Digests are only made when a log is compared or saved.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from pathways_nb.controller.events_and_instructions import Event, Instruction, Released, Submitted
from pathways_nb.controller.replayable import why_not
from pathways_nb.controller.snapshot import Snapshot
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import UsageError
from pathways_nb.plan.call_numbers import call_number
from pathways_nb.util.words import counted

MOST = 5_000
"""Events after which a new snapshot is taken; fewer if they name many buffers."""
_BUFFERS = 64
"""Number of buffers that count as one event more: a training step names thousands, and each is a number to keep."""
_LEAST, _BYTES = 200, 1_000
"""A recording begins with a new snapshot if the events since the last one are more than ``_LEAST``, and more than its
bytes over ``_BYTES``: many short recordings of a large state would each wait for a copy of it, and keep it."""
_RAISED = "raised "
"""How the digest of an event begins at which the core failed."""


class LoggedEvent(NamedTuple):
    """An event that the core handled.

    Args:
        now: when, in seconds of the controller's clock.
        event: the event.
        digest: of the instructions that followed, as ``digest_of`` returns it, or the error that was raised; empty if
            nothing was recorded then.
    """

    now: float
    event: Event
    digest: str


Replay = Iterator[tuple[LoggedEvent, list[Instruction], StateMachine]]
"""Each event of a log, with the instructions that a core gives again, and the core."""


@dataclass(frozen=True, eq=False)
class Log:
    """A snapshot, and all events after it; nothing changes it.

    Args:
        snapshot: the state before the first entry.
        noted: the times and events, with the instructions that followed or the digest of these; an empty one where
            they were not kept.
        why_not: why it cannot be played again, in words; empty if it can.
        missing: number of events of the recording that came before the snapshot, and are forgotten.
        before: number of the first entries, which came before the recording began.
    """

    snapshot: Snapshot
    noted: Sequence[tuple[float, Event, Sequence[Instruction] | str]]
    why_not: str = ""
    missing: int = 0
    before: int = 0

    @cached_property
    def entries(self) -> list[LoggedEvent]:
        """The events, with digests of the instructions."""
        return [
            # Digests only here: making one takes far longer than to keep the instructions.
            LoggedEvent(now, event, made if isinstance(made, str) else digest_of(made))
            for now, event, made in self.noted
        ]

    def replay(self, machine: StateMachine | None = None) -> Replay:
        """Yield each entry with the instructions that the core gives again, and its state then.

        Args:
            machine: what decides, as ``snapshot.machine()`` returns it; a new one if left out.

        Raises:
            UsageError: the log cannot be played again, or the core answers otherwise, with the first such event.
        """
        if self.why_not:
            raise UsageError(f"this log cannot be played again: {self.why_not}.")
        machine = machine or self.snapshot.machine()
        for number, entry in enumerate(self.entries):
            made, found = list[Instruction](), ""
            try:
                made = machine.handle(entry.event, entry.now)
                found = digest_of(made)
            except Exception as error:
                found = f"{_RAISED}{type(error).__name__}"
                if entry.digest != found:
                    where = f"event {number} of {len(self.entries)}, {_event_words(entry.event)} at {entry.now:.6f} s,"
                    why = f"{type(error).__name__}: {error}"
                    raise UsageError(f"replay: {where} cannot be handled ({why}): {_OTHER}.") from error
            # An empty digest: nothing was recorded when the core answered, so there is nothing to compare.
            if entry.digest and found != entry.digest:
                raise UsageError(
                    f"replay: event {number} of {len(self.entries)}, {_event_words(entry.event)} at {entry.now:.6f} s, "
                    f"is answered otherwise ({names_of(made)}, digest {found}, not {entry.digest}): {_OTHER}."
                )
            yield entry, made, machine

    def __repr__(self) -> str:
        checked = sum(bool(made) or isinstance(made, list) for *_, made in self.noted)
        parts = [f"log of {counted(len(self.noted), 'event')}, the answers to {checked} of them kept"]
        parts += [f"the first {counted(self.missing, 'event')} of the recording forgotten"] if self.missing else []
        return f"<{'; '.join([*parts, *([self.why_not] if self.why_not else [])])}>"


_OTHER = (
    "the log is damaged, of another version of pathways_nb, or what its policy calls and reads was defined again since"
)
_ADDRESS = re.compile(r"\b0x[0-9a-f]{4,}\b")


def digest_of(instructions: Sequence[Instruction]) -> str:
    """Return a short text that is equal for equal instructions; errors count by their class and words."""
    # Without addresses, which errors of a policy may quote: they differ from process to process. ``Skip`` was called
    # ``Stop`` when logs were saved that must still be found equal.
    text = _ADDRESS.sub("0x", repr(instructions)).replace("Skip(run=", "Stop(run=")
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def names_of(instructions: Sequence[Instruction]) -> str:
    """Return the names of instructions in words."""
    return ", ".join(type(one).__name__ for one in instructions) or "nothing"


def _event_words(event: Event) -> str:
    call = getattr(event, "run", None)
    return f"{type(event).__name__}{f' of run {call_number(call)}' if isinstance(call, int) else ''}"


_bare = operator.attrgetter("bare")


@dataclass(eq=False)
class _Part:
    """A snapshot and what came after it.

    Args:
        snapshot: the state before.
        first: number of events before it.
    """

    snapshot: Snapshot
    first: int = 0
    flat: list[Any] = field(default_factory=list)
    """Time, event and instructions of one after another: a tuple of each would be one more for Python to collect."""
    size: int = 0
    """Number of events, and of ``_BUFFERS`` that they name."""

    @property
    def end(self) -> int:
        """Number of events before it and in it."""
        return self.first + len(self.flat) // 3

    @property
    def noted(self) -> list[tuple[float, Event, Sequence[Instruction] | str]]:
        """The times, events and instructions."""
        # A copy in one step: the core's thread may append while another thread asks for a log.
        flat = self.flat.copy()
        return list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))


@dataclass(eq=False)
class RecordingStart:
    """Where a recording begins in a log: before the first event that is handled after it was asked for."""

    part: _Part | None = None
    first: int = 0
    """Number of events before it."""


class Logbook:
    """Hands events to a core, and keeps its log; used by the thread in which the core decides.

    Args:
        machine: the core.
        most: events after which a new snapshot is taken; up to twice as many are kept.
        least: events since the last snapshot up to which a recording takes no new one.
    """

    def __init__(self, machine: StateMachine, most: int = MOST, least: int = _LEAST):
        self.machine, self.most, self.least = machine, most, least
        self._parts: list[_Part] = []
        self._asked: list[RecordingStart] = []
        self._recordings = 0
        self._snapshot()

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Let the core handle an event, and keep both; see ``StateMachine.handle``."""
        if self._asked:
            # In the core's thread, between two events: a snapshot needs a state that nobody changes.
            self._begin()
        made: Sequence[Instruction] | str = ""
        try:
            made = answer = self.machine.handle(event, now)
        except BaseException as error:
            # An error of the core is what one most wants to replay, so the event is kept with it.
            made = f"{_RAISED}{type(error).__name__}"
            raise
        finally:
            self._note(now, event, made)
        return answer

    def _note(self, now: float, event: Event, made: Sequence[Instruction] | str) -> None:
        buffers = 0
        if isinstance(event, Submitted):
            # The bare plan, without its virtual slices: a slice that the log kept alive would keep its devices, too.
            event, buffers = _without_places(event), len(event.arguments) + len(event.results)
        elif isinstance(event, Released):
            buffers = len(event.buffers)
        part = self._parts[-1]
        # Instructions only while a recording asks for them: most logs are never read.
        part.flat += (now, event, made if self._recordings or isinstance(made, str) else "")
        part.size += 1 + buffers // _BUFFERS
        if part.size >= self.most:
            self._snapshot()

    def begin(self) -> RecordingStart:
        """Ask for a recording to begin before the next event; any thread may.

        Returns:
            What ``end`` takes; until then instructions are kept, whose digests check a log that is played again.
        """
        asked = RecordingStart()
        self._asked.append(asked)
        return asked

    def end(self, start: RecordingStart) -> Log:
        """Return the log of a recording that ends, and keep no more instructions for it."""
        found = self.log(start)
        if start.part is not None:
            self._recordings -= 1
        elif start in self._asked:  # nothing has happened since
            self._asked.remove(start)
        return found

    def log(self, since: RecordingStart | None = None) -> Log:
        """Return what happened since the start of a recording, as far as it is kept, or all; nothing changes it later.

        The events of the snapshot before that start come first, without the answers. Any thread may ask, also while
        the core decides: what it decides then may be in the log or not.
        """
        parts = list(self._parts)
        if since is not None and since.part is None:  # nothing has happened since
            parts = [_Part(parts[-1].snapshot)]
        elif since is not None and since.part in parts:
            parts = parts[parts.index(since.part) :]
        # If the part of its start is gone, its oldest events were forgotten: all that is left is returned, with how
        # many lack.
        noted = [one for part in parts for one in part.noted]
        skipped = 0 if since is None or since.part is None else parts[0].first - since.first
        return Log(parts[0].snapshot, noted, why_not(self.machine.policy), max(0, skipped), max(0, -skipped))

    def _begin(self) -> None:
        part = self._parts[-1]
        # Few events since the last snapshot: replay them before the recording, which is cheaper than another snapshot.
        if part.size > max(self.least, len(part.snapshot.data) // _BYTES):
            self._snapshot()
        while self._asked:
            one, part = self._asked.pop(), self._parts[-1]
            one.part, one.first = part, part.end
            self._recordings += 1

    def _snapshot(self) -> None:
        self._parts.append(_Part(Snapshot.of(self.machine, _bare), self._parts[-1].end if self._parts else 0))
        # The oldest part goes once those after it hold ``most`` events, so ``most`` to twice as many are kept.
        while sum(part.size for part in self._parts[1:]) >= self.most:
            del self._parts[0]


def _without_places(event: Submitted) -> Submitted:
    """Return a call of the bare plan; spelled out, since ``dataclasses.replace`` takes four times as long."""
    return Submitted(
        event.run, event.client, event.plan.bare, event.arguments, event.results, event.result_bytes, event.footprint,
        event.moved,
    )  # fmt: skip
