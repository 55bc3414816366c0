"""Values that wait for room on devices: asked for by ``PutRequested``, answered by ``Grant`` or ``Refuse``."""

from __future__ import annotations

from collections.abc import Iterable

from pathways_nb.controller.admission import Admission
from pathways_nb.controller.messages import Free, Grant, Instruction, PutRequested, Refuse, Stored
from pathways_nb.controller.requests import PutRequest
from pathways_nb.controller.store import Store
from pathways_nb.errors import LostError, PathwaysError


class PutRequests:
    """Who waits for room. ``admission`` decides who gets it, ``store`` accounts for it from then on."""

    def __init__(self, admission: Admission, store: Store):
        self.admission, self.store = admission, store
        self.waiting: dict[int, PutRequest] = {}
        """By buffer, oldest first."""

    def ask(self, event: PutRequested, now: float) -> list[Instruction]:
        """A client asks for room; refuse it at once if the value can never fit."""
        self.waiting[event.buffer] = request = PutRequest(event, since=now)
        error = self.admission.never_fits(event.allocation, event.client, event.name)
        return [] if error is None else self.refuse(request, error)

    def next(self, now: float) -> list[Instruction] | None:
        """Try one whose turn it is: grant it its room, or note what it lacks; ``None`` if it is nobody's turn."""
        request = next(filter(self.admission.may_try, self.waiting.values()), None)
        if request is None:
            return None
        lack = self.admission.lack(request)
        if lack is not None:
            self.admission.block(request, lack, now)
            return []
        self.admission.admit(request)
        self.admission.finish(request)  # from now on the store accounts for it
        event = self.waiting.pop(request.event.buffer).event
        self.store.put(Stored(event.buffer, event.client, event.bytes, event.name, event.allocation))
        return [Grant(event.buffer, request.since)]

    def refuse(self, request: PutRequest, error: PathwaysError) -> list[Instruction]:
        """There will be no room for it."""
        del self.waiting[request.event.buffer]
        self.admission.excuse(request)
        return [Refuse(request.event.buffer, request.since, error)]

    def close(self, client: str) -> list[Instruction]:
        """A client is gone: nothing of it waits any more."""
        mine = [request for request in self.waiting.values() if request.client == client]
        return [instruction for request in mine for instruction in self.refuse(request, _closed(request))]

    def withdraw(self, buffers: Iterable[int]) -> list[Instruction]:
        """Nobody wants room for these any more; those that have it already are none of ours."""
        withdrawn = tuple(buffer for buffer in dict.fromkeys(buffers) if buffer in self.waiting)
        for buffer in withdrawn:
            self.admission.excuse(self.waiting.pop(buffer))
        return [Free(withdrawn)] if withdrawn else []


def _closed(request: PutRequest) -> LostError:
    return LostError(
        f"{request.event.name} belonged to the client {request.client!r}, which has closed while this waited for "
        f"memory. Put it again for another client."
    )
