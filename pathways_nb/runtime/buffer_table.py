"""The logical buffers of one controller, and the requests for memory of values that clients put onto devices."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import jax

from pathways_nb.controller.events_and_instructions import NOTABLE, PutRequested, Released, Stored
from pathways_nb.errors import CancelledError, LostError
from pathways_nb.plan.footprint import Allocation
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.entries import Entry, stored
from pathways_nb.runtime.event_loop import Clock, EventLoop
from pathways_nb.runtime.memory_events import MemoryEvents
from pathways_nb.trace.rows import Row, label_of
from pathways_nb.util.waiting import Condition


class BufferTable(ABC):
    """A driver's logical buffers by number.

    Args:
        clock: returns seconds.
        ended: notified when a request for memory is answered.
        memory_events: receives how long requests waited.
    """

    event_loop: EventLoop
    closed: bool
    quality: str

    def __init__(self, clock: Clock, ended: Condition, memory_events: MemoryEvents):
        self.clock, self.ended, self.memory_events = clock, ended, memory_events
        self.entries: dict[int, Entry] = {}
        self._requested_puts: dict[int, PutRequested] = {}
        """By buffer, the requests for device memory that the controller has not answered yet."""
        self._buffers = itertools.count()

    @property
    @abstractmethod
    def broken(self) -> bool:
        """Whether nothing more will happen, so that waiting is in vain."""

    def store(self, value: Any, size: int, client: str, token: object, name: str = "") -> Entry:
        """Put a value that lies on no device into the store, and return its entry; ``token`` holds it."""
        # The user may hold other names of an array: only a copy of it may be taken over.
        shared, sharding = isinstance(value, jax.Array), getattr(value, "sharding", None)
        entry = self._entry(token, array=value, shared=shared, sharding=sharding)
        event = Stored(entry.buffer, client, size, name)
        self.event_loop.store(event, map(self.entries.__setitem__, (entry.buffer,), (entry,)))
        return entry

    def _entry(self, token: object, **fields: Any) -> Entry:
        """Return a new entry that ``token`` holds; see ``entries.stored``."""
        return stored(buffer=next(self._buffers), token=token, put=self.event_loop.inbox.put, **fields)

    def reserve(self, where: Allocation, size: int, client: str, token: object, name: str) -> Entry:
        """Wait until devices have memory for a value, which ``fill`` puts there later, or ``abandon`` gives up.

        Args:
            where: the devices, and bytes on each.
            size: bytes of the whole value.
            client: who puts it there.
            token: what holds it.
            name: of the value, in errors and pictures.

        Returns:
            The entry of its logical buffer.

        Raises:
            OutOfMemoryError: there is too little memory, and nothing under way will free any.
            LostError: the client was closed while the value waited for memory.
            CancelledError: the controller was closed meanwhile.
        """
        entry = self._entry(token)
        try:
            self._wait_for_memory(PutRequested(entry.buffer, client, size, name, where), entry)
        except BaseException:
            del token  # now: the traceback may keep this frame
            raise
        return entry

    def fill(self, entry: Entry, where: Placement, array: Any) -> None:
        """Put an array that lies on the devices of ``where`` into a reserved buffer."""
        entry.array, entry.sharding, entry.where = array, array.sharding, where

    def abandon(self, buffer: int) -> None:
        """Forget a value that nobody will have, whether its memory was granted or not. Safe in finalizers."""
        self.event_loop.ask(lambda: self._abandon(buffer))

    def _wait_for_memory(self, event: PutRequested, entry: Entry) -> None:
        """Wait until the controller grants memory."""
        buffer = (event.buffer,)
        entered = map(self.entries.__setitem__, buffer, (entry,))
        self._request_put(event, chain(entered, map(self._requested_puts.__setitem__, buffer, (event,))))
        self.ended.wait(lambda: event.buffer not in self._requested_puts or self.broken)
        self.event_loop.check()
        if self.closed:
            raise CancelledError(f"{event.name} waited for memory when its controller was closed. Attach again.")
        if entry.error is not None:
            raise entry.error

    def _request_put(self, event: PutRequested, changes: Iterable[object]) -> None:
        """Ask the controller for memory, and make changes together with that."""
        self.event_loop.store(event, changes)

    def _abandon(self, buffer: int) -> None:
        """Carry out ``abandon`` in the event loop."""
        self.event_loop.obey(Released((buffer,)))
        self._requested_puts.pop(buffer, None)
        self.entries.pop(buffer, None)

    def _released(self, buffers: list[int]) -> list[int]:
        """Return which buffers, whose tokens are gone, are to be released: a call may never have been handed over."""
        for buffer in self._requested_puts.keys() & buffers if self._requested_puts else ():
            self.abandon(buffer)  # its request may come to the core later than a release would
            buffers.remove(buffer)
        return [buffer for buffer in buffers if buffer in self.entries]

    def entry_of(self, buffer: int) -> Entry:
        """Return the entry of a logical buffer; if another thread has closed its client, an entry with that error."""
        why = "This belonged to a client that another thread has closed. Fetch what you need before it does."
        return self.entries.get(buffer) or stored(error=LostError(why))

    def entries_of(self, buffers: Sequence[int]) -> list[Entry]:
        """Return the same of each buffer."""
        found = list(map(self.entries.get, buffers))  # in C: a training step has hundreds
        return found if None not in found else list(map(self.entry_of, buffers))  # type: ignore[return-value]

    def check_held(self, entries: Sequence[Entry]) -> None:
        """Give new entries the reason why they hold nothing, if another thread closed their client meanwhile."""
        if entries and self.entries.get(entries[0].buffer) is not entries[0]:  # the others went with it
            for entry in entries:
                entry.error = self.entry_of(entry.buffer).error

    def _answer(self, buffer: int, since: float) -> None:
        """End the wait of a put that was granted or refused."""
        event = self._requested_puts.pop(buffer)
        if self.clock() - since > NOTABLE:
            label = label_of("stall", f"back-pressure: memory for {event.name}", client=event.client)
            self.memory_events.note(Row(label, since, self.clock(), quality=self.quality))
        self.ended.notify_all()
