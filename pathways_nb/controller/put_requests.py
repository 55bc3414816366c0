"""Values that wait for memory on devices: requested by ``PutRequested``, answered by ``Grant`` or ``Refuse``.

They go through ``admission`` like programs do, so that neither starves behind the other. A value differs in one point:
it gives nothing back until its holder drops it, so ``store`` accounts for it from the grant on.
"""

from __future__ import annotations

from collections.abc import Iterable

from pathways_nb.controller.admission import Admission
from pathways_nb.controller.events_and_instructions import Free, Grant, Instruction, PutRequested, Refuse, Stored
from pathways_nb.controller.requests import PutRequest
from pathways_nb.controller.store import Store
from pathways_nb.errors import LostError, PathwaysError


class PutRequests:
    """The values that wait for memory.

    Args:
        admission: decides which of them gets memory.
        store: accounts for a value once it has its memory.
    """

    def __init__(self, admission: Admission, store: Store):
        self.admission, self.store = admission, store
        self.waiting: dict[int, PutRequest] = {}
        """By buffer: requests, oldest first."""

    def ask(self, event: PutRequested, now: float) -> list[Instruction]:
        """Return a refusal if the value can never fit; else register the request."""
        # Registered even if it can never fit, so that there is one way to refuse.
        self.waiting[event.buffer] = request = PutRequest(event, since=now)
        error = self.admission.never_fits(event.allocation, event.client, event.name)
        return [] if error is None else self.refuse(request, error)

    def next(self, now: float) -> list[Instruction] | None:
        """Try the next request whose turn it is, and return its answer.

        Returns:
            A ``Grant``; nothing if memory is lacking, which is noted; ``None`` if it is no request's turn.
        """
        request = next(filter(self.admission.may_try, self.waiting.values()), None)
        if request is None:
            return None
        lack = self.admission.lack(request)
        if lack is not None:
            self.admission.block(request, lack, now)
            return []
        # Admitted and finished at once: it counts as having passed the others, and leaves no reservation behind.
        self.admission.admit(request)
        self.admission.finish(request)  # from now on the store accounts for it
        event = self.waiting.pop(request.event.buffer).event
        self.store.put(Stored(event.buffer, event.client, event.bytes, event.name, event.allocation))
        return [Grant(event.buffer, request.since)]

    def refuse(self, request: PutRequest, error: PathwaysError) -> list[Instruction]:
        """Return the refusal of a request, which is removed."""
        del self.waiting[request.event.buffer]
        self.admission.excuse(request)
        return [Refuse(request.event.buffer, request.since, error)]

    def close(self, client: str) -> list[Instruction]:
        """Return refusals of all requests of a client that closed."""
        out: list[Instruction] = []
        for request in [request for request in self.waiting.values() if request.client == client]:
            closed = f"{request.event.name} belonged to the client {client!r}, which has closed while this waited for"
            out += self.refuse(request, LostError(f"{closed} memory. Put it again for another client."))
        return out

    def withdraw(self, buffers: Iterable[int]) -> list[Instruction]:
        """Return a ``Free`` for those of these buffers that still wait; stored ones are not touched."""
        # Once each, in the given order: an event may name a buffer twice.
        withdrawn = tuple(buffer for buffer in dict.fromkeys(buffers) if buffer in self.waiting)
        for buffer in withdrawn:
            self.admission.excuse(self.waiting.pop(buffer))
        return [Free(withdrawn)] if withdrawn else []
