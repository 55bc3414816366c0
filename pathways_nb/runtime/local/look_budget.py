"""How often a thread may look at launches: a look takes Python's lock from those who launch."""

from __future__ import annotations

BUDGET = 0.02
"""The share of time for which a watcher may keep one core busy, as far as looking less often can help."""
MOST_AT_ONCE = 16
"""The most launches per look: more could fill the dispatcher's window."""
LATE = 2e-3
"""Seconds for which an end may go unseen for the budget's sake: somebody may wait for it."""
_PAUSE = 0.02
"""Seconds between two launches that are a pause: what was before says nothing of the launches after it."""


class LookBudget:
    """Says how many launches one look of a thread may be for.

    Args:
        share: of the time of one core that looks may take; 0 looks as rarely as possible.
    """

    def __init__(self, share: float = BUDGET):
        self.share = share
        self._interval = _PAUSE
        """Seconds from one launch's end to the next, at the mean."""
        self._cost = self._looked = 0.0
        """Processor seconds of a look; time of the last look."""

    @property
    def at_once(self) -> float:
        """Launches per look, so that looks take no more than their share; 1 or less where each may have its own."""
        most = min(MOST_AT_ONCE, max(1.0, LATE / self._interval)) if self.share else MOST_AT_ONCE
        return min(most, self._cost / max(self.share * self._interval, 1e-9))

    def looked(self, count: int, now: float, cost: float) -> None:
        """Learn from a look.

        Intervals are averaged, not rates: two short launches among long ones must not make it look at every tenth.

        Args:
            count: launches that it was for.
            now: time on the clock, in seconds.
            cost: processor seconds that it took.
        """
        interval = (now - self._looked) / count
        self._interval = _PAUSE if interval >= _PAUSE else self._interval + 0.2 * (interval - self._interval)
        self._cost += 0.2 * (cost - self._cost)
        self._looked = now
