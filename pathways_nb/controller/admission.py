"""Back-pressure: a program begins when the memory it needs to finish can be set aside (Pathways, section 4.6).

All of it is set aside at once, on all islands, and given back as the program goes on. So every admitted program can
finish in what it has, nobody holds memory while waiting for more, and whoever waits long is not passed by for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from pathways_nb.controller.memory import Memory
from pathways_nb.controller.state import Blocked, Claim, ClientState, RunState
from pathways_nb.controller.store import Store
from pathways_nb.errors import OutOfMemoryError, size
from pathways_nb.program.memory import covers
from pathways_nb.program.plan import Placement

MOST_PASSED = 16
"""Programs that may be admitted while another waits for memory."""
PATIENCE = 1.0
"""Seconds to wait for memory that only users' handles hold: a handle may be about to be dropped."""
PATIENCE_WITH_OTHERS = 10.0
"""The same where another client holds some of it, who may be about to close."""
_NAMED = 5


class Admission:
    """Who has memory set aside. ``memory``, ``store`` and ``clients`` are the controller's."""

    def __init__(self, memory: Memory, store: Store, clients: dict[str, ClientState]):
        self.memory, self.store, self.clients = memory, store, clients
        self.most_passed = MOST_PASSED
        self.blocked: dict[int, RunState] = {}
        """By run, those that were tried and found too little, the longest waiting first."""
        self.under_way: dict[int, int] = {}
        """By island: admitted programs that are not done."""

    def fits(self, run: RunState, now: float) -> bool:
        """Whether memory is set aside for a run, or could be."""
        if run.admitted or not (self.blocked or self._is_limited(run.submitted.client)):
            return True
        if not self._may_try(run):
            return False
        lacking = self._lacking(run.submitted.client, self._claims(run))
        if lacking is not None:
            self._block(run, *lacking, now)
        return lacking is None

    def admit(self, run: RunState) -> None:
        """Set memory aside for a run that it fits."""
        run.admitted = True
        for claim in self._claims(run):
            self.memory.add(claim.where, run.submitted.client, claim.bytes)
            run.claims.setdefault(claim.where.island, []).append(claim)
        self.blocked.pop(run.submitted.run, None)
        for other in self.blocked.values():
            assert other.blocked is not None
            other.blocked.passed += 1
        run.touches = self._islands(run)
        self._count(run, 1)

    def excuse(self, run: RunState) -> None:
        """A run was given up: what is left of it needs nothing."""
        self.blocked.pop(run.submitted.run, None)

    def went_on(self, run: RunState, island: int) -> None:
        """Gangs of a run are done on an island: what only they needed is given back."""
        done = run.gangs_done(island)
        for claim in run.claims.get(island, ()):
            less = claim.inputs + claim.course.peaks[done] - claim.bytes
            self.memory.add(claim.where, run.submitted.client, less)
            claim.bytes += less

    def finish(self, run: RunState) -> None:
        """Nothing of a run is under way any more."""
        if run.admitted:
            self._count(run, -1)
            self._give_back(run)

    def stuck(self, now: float) -> tuple[dict[int, OutOfMemoryError], bool]:
        """Of runs that nothing under way on their island will give memory to: those that have waited enough.

        Of one client at a time: what it then gives back may be enough for the others, who wait anew. Also whether any
        begins to wait.
        """
        whose = None
        failed: dict[int, OutOfMemoryError] = {}
        begin = False
        for serial, run in self.blocked.items():
            waits = run.blocked
            assert waits is not None
            if self.under_way.get(waits.where.island):
                waits.alone_since = None
            elif waits.alone_since is None or whose not in (None, run.submitted.client):
                waits.alone_since, begin = now, True
            elif now < self._until(waits):
                continue
            elif self._lacking(run.submitted.client, self._claims(run)) is None:  # only others go before it
                waits.alone_since, begin = now, True
            else:
                failed[serial], whose = self._error(run, waits), run.submitted.client
        return failed, begin

    def next_look(self) -> float | None:
        """When to ask ``stuck`` again, in seconds of the controller's clock."""
        waiting = (run.blocked for run in self.blocked.values())
        return min((self._until(waits) for waits in waiting if waits and waits.alone_since is not None), default=None)

    def _until(self, waits: Blocked) -> float:
        assert waits.alone_since is not None
        return waits.alone_since + waits.patience

    def patience(self, where: Placement, client: str) -> float:
        """Seconds to wait for memory of a placement while nothing is under way there that could give any back."""
        return _patience(self._held(where), client)

    def room(self, where: Placement, client: str) -> int | None:
        """Bytes per device that are left for a client on a placement; ``None``: no limit."""
        budget = self.memory.islands[where.island].budget
        limit = self.clients[client].memory if client in self.clients else 0
        left = [budget - self.memory.most(where)] if budget else []
        left += [limit - self.memory.most_of(client, where)] if limit else []
        return min(left, default=None)

    def capacity(self, where: Placement, client: str) -> int | None:
        """The most bytes per device that a client could ever have on a placement; ``None``: no limit."""
        limit = self.clients[client].memory if client in self.clients else 0
        return min(filter(None, (self.memory.islands[where.island].budget, limit)), default=None)

    def holders(self, where: Placement) -> str:
        """What lies on a placement by name, the largest first."""
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

    def _may_try(self, run: RunState) -> bool:
        if run.blocked is not None and run.blocked.tried == self.memory.freed:
            return False
        passed = (
            waits for waits in self.blocked.values() if waits.blocked and waits.blocked.passed >= self.most_passed
        )
        return next(passed, run) is run  # of several that were passed by often, the one that waits longest

    def _claims(self, run: RunState) -> Iterator[Claim]:
        """All that a run needs to finish."""
        needs = run.submitted.needs
        copied = [needs.inputs[position] for position in {*run.submitted.moved, *self._cannot_take(run)}]
        for island, courses in needs.courses.items():
            for course in courses:
                inputs = sum(h.bytes for h in copied if covers(h.placement, island, course.first))
                where = Placement(island, course.first, course.count)
                yield Claim(where, course, inputs, inputs + course.peaks[0])

    def _cannot_take(self, run: RunState) -> Iterator[int]:
        """Positions of inputs that it would take over, but must copy: others have the same array."""
        event = run.submitted
        taken = [a for a in event.needs.taken if self.store.buffers[event.arguments[a]].shared]
        bringing = (step.argument for step in run.plan.steps if step.kind == "bring") if taken else ()
        return (position for position, argument in enumerate(bringing) if argument in taken)

    def _give_back(self, run: RunState) -> None:
        for claims in run.claims.values():
            for claim in claims:
                self.memory.add(claim.where, run.submitted.client, -claim.bytes)
        run.claims = {}

    def _lacking(self, client: str, claims: Iterable[Claim]) -> tuple[Placement, int] | None:
        """Where too much is held now for ``claims`` to be met, and by how many bytes."""
        for claim in claims if self._is_limited(client) else ():
            room = self.room(claim.where, client)
            if room is not None and room < claim.bytes:
                return claim.where, claim.bytes - room
        return None

    def _is_limited(self, client: str) -> bool:
        return self.memory.limited or bool(client in self.clients and self.clients[client].memory)

    def _block(self, run: RunState, where: Placement, short: int, now: float) -> None:
        held, mine = self._held(where), run.submitted.client
        found = Blocked(
            now, where, short, _reason(where, held), patience=_patience(held, mine), tried=self.memory.freed
        )
        if (before := run.blocked) is not None:
            found.since, found.passed, found.alone_since = before.since, before.passed, before.alone_since
        run.blocked = found
        self.blocked[run.submitted.run] = run

    def _held(self, where: Placement) -> dict[str, int]:
        """By client, the most bytes on any device of a placement; what hardly matters is left out."""
        island, found = self.memory.islands[where.island], Counter[str]()
        for at in island.within(where):
            found |= Counter(island.held[at])
        return {client: held for client, held in sorted(found.items()) if 100 * held >= max(found.values())}

    def _count(self, run: RunState, by: int) -> None:
        for island in run.touches:
            self.under_way[island] = self.under_way.get(island, 0) + by

    def _islands(self, run: RunState) -> set[int]:
        """Where a run will give memory back: where it runs, and where its arguments lie."""
        held = (entry.holding for b in run.submitted.arguments if (entry := self.store.buffers.get(b)) is not None)
        return {*run.plan.orders, *(holding.placement.island for holding in held if holding is not None)}

    def _error(self, run: RunState, waits: Blocked) -> OutOfMemoryError:
        submitted = run.submitted
        whose = f" of {submitted.client}" if submitted.client else ""
        what = f"{run.plan.graph.name}, run {submitted.run}{whose}, lacks {size(waits.short)}"
        return OutOfMemoryError(f"{what} of {self.no_room(waits.where, submitted.client)}")

    def no_room(self, where: Placement, client: str) -> str:
        """Of what there is not enough, who holds it, and what to do."""
        budget = self.memory.islands[where.island].budget
        limit = self.clients[client].memory if client in self.clients else 0
        if limit and (not budget or limit - self.memory.most_of(client, where) < budget - self.memory.most(where)):
            of, fix = (
                f"the {size(limit)} per device that {client} may have on {where}",
                f"give {client!r} a larger memory=",
            )
        else:
            of, fix = f"the {size(budget)} per device of {where}", "attach with a larger hbm="
        owners = {entry.owner for entry, _ in self.store.at(where)} - {"", client}
        if owners:
            fix = f"close {', '.join(map(repr, sorted(owners)))} (the end of its with block, or its close()), or {fix}"
        return (
            f"{of}, and nothing is under way that will give memory back. Held by variables: "
            f"{self.holders(where) or 'nothing there'}. Drop those you no longer need (del y, or fetch y.result() and "
            f"keep that), or {fix}."
        )


def _patience(held: Iterable[str], client: str) -> float:
    return PATIENCE_WITH_OTHERS if any(holder not in ("", client) for holder in held) else PATIENCE


def _reason(where: Placement, held: dict[str, int]) -> str:
    parts = [f"{client or 'no client'} {size(count)}" for client, count in held.items()]
    return f"memory of island {where.island} held by {', '.join(parts) or 'nobody'}"
