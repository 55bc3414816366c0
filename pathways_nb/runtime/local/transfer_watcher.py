"""The watcher of transfers to an island."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

from pathways_nb.runtime.local.watcher import PATIENCE, Clock, Sent, Watcher, end_step, stamp, wait_for
from pathways_nb.timing.waits import DATA, MESSAGE
from pathways_nb.trace.rows import BY, Label, Row

_RETRY = 2e-3
"""Seconds between two checks whether a source has been stamped."""


class TransferWatcher(Watcher):
    """Watches transfers to one island; a transfer begins when its source has ended, which may be stamped later."""

    def __init__(self, name: str, clock: Clock):
        super().__init__(name, clock)
        self._late: list[Callable[[], bool]] = []
        """Transfers that have ended, to be recorded when the end of their source is stamped."""

    def follow(self, launched: Sent) -> None:
        """Watch a transfer; the dispatcher calls this."""
        if getattr(launched.witness, "is_ready", bool)():  # typed keys do not tell
            self.note_now(launched)  # behind longer transfers in the queue its end would be seen late
        else:
            self.inbox.put(launched)

    def note_now(self, launched: Sent) -> None:
        """Record a transfer that had ended when it was dispatched; the dispatcher calls this."""
        failure = wait_for(launched.witness)
        launched.ended = stamp(launched.launch_range.run, launched.step, self.clock())
        if not self._note(launched, launched.ended, failure, "estimated", launched.ended + PATIENCE):
            self.inbox.put(launched)

    def _next(self) -> Sent | None:
        """Return the next transfer; meanwhile record those whose source has been stamped."""
        while self._late:
            self._late = [note for note in self._late if not note()]
            try:
                return self.inbox.get(timeout=_RETRY)
            except queue.Empty:
                continue
        return self.inbox.get()

    def _end(self, launched: Sent, end: float, failure: BaseException | None, quality: str) -> None:
        note = partial(self._note, launched, end, failure, quality, self.clock() + PATIENCE)
        if not note():
            self._late.append(note)

    def _note(self, launched: Sent, end: float, failure: BaseException | None, quality: str, deadline: float) -> bool:
        """Record a transfer unless its source has ended without a stamp so far; return whether it was recorded."""
        ready = self._ready_at(launched)
        if ready is None and failure is None and self.clock() < deadline:
            return False
        run = launched.launch_range.run
        label = run.compiled_plan.actions[launched.step].label
        label = routed(label, launched.route, launched.size) if launched.route else label
        start, why = max((ready or 0.0, DATA), (launched.dispatched, MESSAGE))
        if launched.step in run.late:  # its source is what it was sent for, a moment after that was there
            why = DATA
        row = Row(run.own(label), min(start, end), end, run.serial, quality, cause=BY[why])
        end_step(run, launched.step, row, failure)
        launched.launch_range.step_done()
        return True

    def _ready_at(self, launched: Sent) -> float | None:
        run, source = launched.launch_range.run, launched.source
        if source is not None:
            return 0.0 if source.run is None else source.run.ends.get(source.step)
        producers = run.compiled_plan.actions[launched.step].step.producers
        return max(run.ends[p] for p in producers) if _all_in(producers, run.ends) else None


@lru_cache(maxsize=4096)
def routed(label: Label, route: str, size: int) -> Label:
    """Return the label of an argument of which ``size`` bytes travelled on this route."""
    return replace(label, route=route, bytes=size)


def _all_in(steps: Sequence[int], ends: Mapping[int, float]) -> bool:
    return all(step in ends for step in steps)
