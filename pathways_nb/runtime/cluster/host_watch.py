"""Which hosts have died or do not answer, and which of them made others fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from pathways_nb.runtime.cluster.heartbeats import EVERY, Heartbeats, unanswered
from pathways_nb.runtime.cluster.host_island import HostIsland, Link

_TOGETHER = 0.5
"""Seconds within which the death of a host is heard of that made others fail."""
STANDSTILL = 30.0
"""Seconds without a report after which it is told."""
_LOOK = 5e-3
"""Seconds between two looks whether it is."""


class HostWatch:
    """Looks every few seconds whether hosts answer.

    Args:
        islands: the islands; more may be added.
        unresponsive_after: seconds of silence after which a host counts as dead.
        lose: called with an island, a host of it, and why it counts as dead.
        silent: called with the index of an island of which hosts do not answer, and for how many seconds each has not,
            at each look, and once without hosts when all do again.
        stands_still: called, once, when no report has come for a while though one must.
    """

    def __init__(
        self,
        islands: Sequence[HostIsland],
        unresponsive_after: float,
        lose: Callable[[HostIsland, Link, str], None],
        silent: Callable[[int, dict[int, float]], None],
        stands_still: Callable[[], None],
    ):
        self._islands, self._unresponsive_after, self._lose = islands, unresponsive_after, lose
        self._tell_silent, self._stands_still = silent, stands_still
        self.dead: set[Link] = set()
        """Hosts whose processes have ended."""
        self.heard = 0
        """Reports that have come."""
        self.waits: Callable[[], bool] = lambda: False
        """Returns whether a report must come."""
        self._silent: set[int] = set()
        """Islands of which a host did not answer at the last look."""
        self._still, self._heard, self._told = 0.0, 0, False
        self._heartbeats, self._over = Heartbeats(), threading.Event()

    def run(self) -> None:
        """Look until the end."""
        while not self._over.wait(EVERY):
            self.look()
            self.look_for_progress()

    def look_for_progress(self) -> None:
        """Look once whether hosts report something."""
        stands = self.waits() and self.heard == self._heard
        self._still, self._heard = self._still + EVERY if stands else 0.0, self.heard
        if self._still >= STANDSTILL and not self._told:
            self._told = True
            self._stands_still()

    def end(self) -> None:
        """Look no more."""
        self._over.set()

    def look(self) -> None:
        """Look once whether hosts answer, and give up an island of which one has not for too long."""
        living = [island for island in list(self._islands) if not island.lost]
        self._heartbeats.keep([link for island in living for link in island.links])
        for island in living:
            silent = {link: self._heartbeats.look(link) for link in island.links}
            seconds = {number: silent[link] for number, link in enumerate(island.links) if silent[link]}
            if seconds or island.index in self._silent:
                (self._silent.add if seconds else self._silent.discard)(island.index)
                self._tell_silent(island.index, seconds)
            link = max(silent, key=lambda one: silent[one])
            if silent[link] >= self._unresponsive_after:
                self._lose(island, link, f"it {unanswered(silent[link])}")

    def culprit(self, link: Link, others: Sequence[Link]) -> Link:
        """Return the host whose death made this one fail, or this one.

        Hosts of an island fail together, and the first to be heard of need not be the first that failed: JAX's service
        lives in the first host and ends the others with it, and a collective fails where the other hosts live.

        Args:
            link: to the host that was heard of.
            others: to the hosts whose death would explain it.
        """
        deadline = time.monotonic() + _TOGETHER
        while (left := [one for one in others if one is not link]) and not self._over.is_set():
            if found := [one for one in left if one in self.dead]:
                return found[0]
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK)
        return link
