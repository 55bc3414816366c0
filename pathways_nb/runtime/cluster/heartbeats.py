"""How long hosts have not answered: a process that stands still does not end, so nothing else tells of it.

A host answers in a thread that nothing else uses, so one that compiles or computes answers, however long it takes. One
does not if it was stopped or swapped out, or if code in it holds Python's lock. Time is counted in looks and not by a
clock: a kernel that slept itself must not take its hosts for dead.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pathways_nb.runtime.cluster.host_island import Answer, HostDied, Link

UNRESPONSIVE_AFTER = 30.0
"""Seconds of silence after which a host counts as dead, unless ``pw.attach`` is told otherwise."""
EVERY = 2.0
"""Seconds between two looks."""
_STEP = 0.02
"""Seconds between two looks whether a host has started."""
STARTS = 120.0
"""Seconds for a new host to answer for the first time."""


class Heartbeats:
    """Asks hosts whether they live, each again when it has answered."""

    def __init__(self) -> None:
        self._asked: dict[Link, Answer] = {}
        self._silent: dict[Link, float] = {}
        self._answered: set[Link] = set()

    def look(self, link: Link) -> float:
        """Return the seconds for which a host has not answered; called every ``EVERY`` seconds."""
        asked = self._asked.get(link)
        if asked is not None and not asked.done():
            self._silent[link] += EVERY
        else:
            if asked is not None:
                self._answered.add(link)
            self._asked[link], self._silent[link] = link.ask("heartbeat"), 0.0
        return self._silent[link]

    def keep(self, links: Sequence[Link]) -> None:
        """Forget all other hosts."""
        for link in self._asked.keys() - set(links):
            del self._asked[link], self._silent[link]
            self._answered.discard(link)

    def check_starting(self, links: Sequence[Link], unresponsive_after: float) -> None:
        """Look at hosts that start.

        Args:
            links: to them.
            unresponsive_after: seconds of silence after which one counts as dead, once it has answered.

        Raises:
            HostDied: one does not answer.
        """
        for number, link in enumerate(links):
            silent = self.look(link)
            limit = unresponsive_after if link in self._answered else max(STARTS, unresponsive_after)
            if silent >= limit:
                raise HostDied(f"host {number} of {len(links)} {unanswered(silent)} while it started")


def unanswered(seconds: float) -> str:
    """Return that a host does not answer, as text."""
    return f"has not answered for {seconds:.0f} s: it is stopped or swapped out, or code in it holds Python's lock"


def together(futures: Sequence[Any], links: Sequence[Link], unresponsive_after: float) -> list[Any]:
    """Return what hosts say that start together, or raise the first error: the others would wait for the dead one.

    Args:
        futures: of their answers.
        links: to them.
        unresponsive_after: seconds of silence after which one counts as dead.

    Raises:
        HostDied: one has died, or does not answer.
    """
    beats, looks = Heartbeats(), 0
    while not all(one.done() for one in futures):
        for one in futures:
            if one.done():
                one.result(0)
        time.sleep(_STEP)
        looks += 1
        if looks % round(EVERY / _STEP) == 0:
            beats.check_starting(links, unresponsive_after)
    return [one.result(0) for one in futures]
