"""Admission: which request gets memory, which waits, which fails (back-pressure; Pathways, section 4.6).

A program begins when all memory that it needs until it ends can be reserved, on all islands at once; it gives memory
back as its gangs complete. So every admitted program can finish with what it has reserved, and no request holds memory
while it waits for more: that is what excludes deadlocks over memory. A value that a client puts onto devices waits for
memory by the same rules.

Two rules keep waiting bounded. Once ``most_passed`` other requests were admitted before a blocked one, it goes next. A
request that waits for memory that nothing under way will give back fails after a while, since only variables of users
hold that memory.

``held_memory`` keeps the byte counts, ``requests`` says what a request needs.
"""

from __future__ import annotations

from collections import Counter

from pathways_nb.controller.events_and_instructions import Instruction, Waited
from pathways_nb.controller.held_memory import DeviceMemory
from pathways_nb.controller.requests import Blocked, Request, Shortage, Stall
from pathways_nb.controller.state import CallState, ClientState
from pathways_nb.controller.store import Store
from pathways_nb.errors import OutOfMemoryError, size
from pathways_nb.plan.footprint import Allocation
from pathways_nb.plan.memory_parts import added
from pathways_nb.plan.plan import Placement

MOST_PASSED = 16
"""Number of requests that may be admitted while another waits for memory; after that it goes next."""
PATIENCE = 1.0
"""Seconds to wait for memory that only users' handles hold: a handle may be about to be dropped."""
PATIENCE_WITH_OTHERS = 10.0
"""Seconds to wait if another client holds some of the memory: it may be about to close."""
_NAMED = 5


class Admission:
    """The requests that have memory reserved, and those that wait for it.

    Args:
        memory: bytes held on each device; the controller's own object.
        store: the controller's store of logical buffers.
        clients: the controller's accounts, which have each client's limit.
    """

    def __init__(self, memory: DeviceMemory, store: Store, clients: dict[str, ClientState]):
        self.memory, self.store, self.clients = memory, store, clients
        self.most_passed = MOST_PASSED
        self.blocked: dict[Request, Blocked] = {}
        """Requests that were tried and lacked memory, the longest waiting first."""
        self.stalls: dict[int, Stall] = {}
        """By island: a period in which requests wait, or did a moment ago, while nothing is under way on the island."""
        self.under_way: dict[int, int] = {}
        """By island: number of admitted programs that are not done and will give memory back on it."""

    # ---- questions

    def may_try(self, request: Request) -> bool:
        """Return whether it is a request's turn, and its answer could differ from the last one.

        The second part saves time: as long as no memory was given back, a blocked request would be refused again.
        """
        if request.admitted or not self.blocked:
            return True
        waits = self.blocked.get(request)
        # What a request wants does not shrink while it waits, so only memory that was given back, or a new limit (which
        # counts as that), can change the answer.
        if waits is not None and waits.tried == self.memory.freed:
            return False
        passed = (other for other, waits in self.blocked.items() if waits.passed >= self.most_passed)
        return next(passed, request) is request  # of several that were passed often, the one that waits longest

    def lack(self, request: Request) -> Shortage | None:
        """Return where too little memory is left for a request to be admitted now; ``None`` if nowhere."""
        if request.admitted or not (self.memory.limited or self._limit(request.client)):
            return None
        for reservation in request.wants(self.store):
            # Range by range: a call may need different amounts on the devices of one island.
            free_bytes = self.free_bytes(reservation.where, request.client)
            if free_bytes is not None and free_bytes < reservation.bytes:
                return Shortage(reservation.where, reservation.bytes - free_bytes)
        return None

    def hopeless(self, now: float) -> tuple[Request, OutOfMemoryError] | None:
        """Return a request that waited long enough for memory that nothing under way will give back, and its error."""
        for request in self.blocked:
            until = self._until(request)
            if until is not None and now >= until and (lack := self.lack(request)) is not None:
                why = self._shortage_text(lack.where, request.client)
                return request, OutOfMemoryError(f"{request.shortage(lack.short)} of {why}")
        return None

    def next_look(self, now: float) -> float | None:
        """Return when to call ``hopeless`` again, in seconds of the controller's clock; ``None`` if no time is known.

        A request that has waited long enough and is not hopeless lacks nothing: others go before it.
        """
        return min((until for r in self.blocked if (until := self._until(r)) is not None and until > now), default=None)

    def wait_of(self, call: CallState) -> list[Instruction]:
        """Return a note of how long a call has waited for memory and why; nothing if it does not wait."""
        waits = self.blocked.get(call)
        return [Waited(call.submitted.run, waits.since, waits.reason)] if waits is not None else []

    def _until(self, request: Request) -> float | None:
        """Return when a request has waited long enough; ``None`` while something under way could give memory back.

        After the first failure of a stall, other clients wait a little longer: the client that failed may now drop
        variables.
        """
        waits = self.blocked[request]
        stall = self.stalls.get(waits.where.island)
        # ``until`` is ``None`` while something is under way on the island that may give memory back: then nobody fails.
        if stall is None or waits.until is None or stall.first in (None, request.client):
            return waits.until
        return max(waits.until, stall.others_until)

    # ---- commands

    def block(self, request: Request, lack: Shortage, now: float) -> None:
        """Record that a request was tried and lacks memory; time that it has waited before still counts."""
        held = self._held(lack.where)
        holders = ", ".join(f"{client or 'no client'} {size(count)}" for client, count in held.items())
        if elsewhere := self.memory.islands[lack.where.island].others_text:
            holders = f"{holders}, {elsewhere}" if holders else elsewhere
        reason = f"memory of island {lack.where.island} held by {holders or 'nobody'}"
        others = any(holder not in ("", request.client) for holder in held)
        patience = PATIENCE_WITH_OTHERS if others else PATIENCE
        found, before = Blocked(now, lack.where, reason, patience, self.memory.freed), self.blocked.get(request)
        # Other devices may be short than at the last try, so where and why are new; the time waited is not.
        if before is not None:
            found.since, found.passed = before.since, before.passed
            found.alone, found.alone_since = before.alone, before.alone_since
        self.blocked[request] = found

    def admit(self, request: Request) -> None:
        """Reserve memory for a request that lacks none."""
        request.admitted, client = True, request.client
        for reservation in request.wants(self.store):
            self.memory.add(reservation.where, client, reservation.parts)
            request.reservations.setdefault(reservation.where.island, []).append(reservation)
        self.blocked.pop(request, None)
        for waits in self.blocked.values():
            # Whoever still waits was passed, wherever the memory is: a count for each island could starve a request for
            # several.
            waits.passed += 1
        # Noted now: buffers that a finished call held may be gone, and the same islands must be counted down.
        request.touches = request.gives_back_on(self.store)
        self._count(request, 1)

    def excuse(self, request: Request) -> None:
        """Remove a request that was cancelled or refused from those that wait."""
        self.blocked.pop(request, None)

    def progressed(self, call: CallState, island: int) -> None:
        """Give back what only completed gangs of a call needed on an island.

        The profile says how much the rest of the call needs at most, so a reservation only ever shrinks.
        """
        done = call.gangs_done(island)
        for reservation in call.reservations.get(island, ()):
            # By identity: profiles share one object for gangs in a row that need the same, so most completions cost
            # nothing.
            if reservation.profile.parts[done] is not reservation.needs:
                self.memory.add(reservation.where, call.client, reservation.shrink(done))

    def finish(self, request: Request) -> None:
        """Give back everything that a request still has reserved; nothing of it is under way any more."""
        if request.admitted:
            self._count(request, -1)
            client = request.client
            for reservations in request.reservations.values():
                for reservation in reservations:
                    self.memory.add(reservation.where, client, added({}, reservation.parts, -1))
            request.reservations = {}

    def note_stalls(self, now: float) -> None:
        """Update how long each blocked request has waited while nothing was under way on its island.

        Work on the island interrupts this time but does not reset it, or short programs of others could keep a hopeless
        request waiting for ever. A program that is tried only now because it was behind others that waited has waited
        with them.
        """
        waited_for = {waits.where.island: None for waits in self.blocked.values()}
        for island in waited_for:
            # A stall belongs to an island, not to a request: what gives memory back there helps all that wait for it.
            self.stalls.setdefault(island, Stall())
        for island, stall in tuple(self.stalls.items()):
            if self.under_way.get(island):
                stall.since = None
            elif stall.since is None:
                stall.since, stall.first = now, stall.first if now <= stall.others_until else None
            # An ended stall is kept until other clients need not wait for its first failure any more.
            if island not in waited_for and now > stall.others_until:
                del self.stalls[island]
        for request, waits in self.blocked.items():
            since = self.stalls[waits.where.island].since
            if since is None and waits.alone_since is not None:
                waits.alone, waits.alone_since = waits.alone + now - waits.alone_since, None
            elif since is not None and waits.alone_since is None:
                # Not before it was made: a request that comes into a stall must not fail at once.
                waits.alone_since = max(since, request.since)

    def note_failed(self, request: Request, now: float) -> None:
        """Record that a request waited in vain: others wait a moment longer, since its client may now free memory."""
        stall = self.stalls[self.blocked[request].where.island]
        if stall.first is None:
            # Only the first failure: if each began the time anew, many requests would fail one by one, a moment apart.
            stall.first, stall.others_until = request.client, now + PATIENCE

    # ---- amounts

    def free_bytes(self, where: Placement, client: str) -> int | None:
        """Return how many bytes per device are left for a client on a placement; ``None`` if there is no limit."""
        budget = self.memory.islands[where.island].budget
        limit = self._limit(client)
        # By the fullest device: a gang needs the same on each of its devices.
        left = [self.memory.islands[where.island].share - self.memory.most(where)] if budget else []
        left += [limit - self.memory.most_of(client, where)] if limit else []
        return min(left, default=None)

    def holders(self, where: Placement) -> str:
        """Return the buffers on a placement in words, the largest first, at most five kinds by name."""
        found = Counter(
            (each, f"{entry.name}{f' of {entry.owner}' if entry.owner else ''}") for entry, each in self.store.at(where)
        )
        ordered = sorted(found.items(), key=lambda item: -item[0][0])
        names = [
            f"{name} ({size(each)})" if count == 1 else f"{count} × {name} ({size(each)} each)"
            for (each, name), count in ordered[:_NAMED]
        ]
        more = len(ordered) - _NAMED
        return ", ".join(names) + (f" and {more} more" if more > 0 else "")

    def never_fits(self, allocation: Allocation, client: str, name: str) -> OutOfMemoryError | None:
        """Return the error for a value that is larger than its devices or its client's limit; else ``None``."""
        limit = self._limit(client)
        most = min(filter(None, (self.memory.islands[allocation.placement.island].budget, limit)), default=None)
        if most is None or most >= allocation.bytes:
            return None
        return OutOfMemoryError(
            f"{name} needs {size(allocation.bytes)} on each device of {allocation.placement}, which is more than the "
            f"{size(most)} that there are. Use more devices or smaller arrays, or a larger hbm= or memory=."
        )

    def _limit(self, client: str) -> int:
        """Return the limit of a client in bytes per device; 0 if it has none."""
        return self.clients[client].memory if client in self.clients else 0

    def _held(self, where: Placement) -> dict[str, int]:
        """Return the most bytes that each client holds on any device of a placement; below 1 % is left out."""
        found = Counter[str]()
        for held in self.memory.islands[where.island].within(where):
            # Union of counters: the most of each client on any device, which is what a request on all of them meets.
            found |= Counter(held.clients)
        return {client: most for client, most in sorted(found.items()) if 100 * most >= max(found.values())}

    def _count(self, request: Request, by: int) -> None:
        for island in request.touches:
            self.under_way[island] = self.under_way.get(island, 0) + by

    def _shortage_text(self, where: Placement, client: str) -> str:
        """Return an explanation of a memory shortage: what is short, who holds it, how to free it."""
        island, limit = self.memory.islands[where.island], self._limit(client)
        budget = island.budget
        # Of both limits the one that leaves less is the reason, and only its fix helps.
        if limit and (
            not budget or limit - self.memory.most_of(client, where) < island.share - self.memory.most(where)
        ):
            of, fix = (
                f"the {size(limit)} per device that {client} may have on {where}",
                f"give {client!r} a larger memory=",
            )
        else:
            of, fix = f"the {size(budget)} per device of {where}", "attach with a larger hbm="
            if island.others_text:
                of += f", less {island.others_text}"
                fix = "delete arrays of your own there"
        owners = {entry.owner for entry, _ in self.store.at(where)} - {"", client}
        if owners:
            fix = f"close {', '.join(map(repr, sorted(owners)))} (the end of its with block, or its close()), or {fix}"
        return (
            f"{of}, and nothing is under way that will give memory back. Held by variables: "
            f"{self.holders(where) or 'nothing there'}. Drop those you no longer need (del y, or fetch y.result() and "
            f"keep that), or {fix}."
        )
