"""Devices that are lost while programs run, and come back: a slice of Pathways on Cloud that is preempted, say.

An error names a loss, or casts doubt on an island's devices. Then they are asked, in a thread of its own, because a
device answers only after what it was given before. Lost ones are asked again until they answer. What a loss means is
decided elsewhere: the core learns of devices that are removed and added, as for any other reason.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pathways_nb.runtime.local.device_failures import answers

EVERY = 5.0
"""Seconds between two questions to devices that are lost."""


class LossWatch(threading.Thread):
    """Asks devices that may be lost.

    Args:
        islands: the devices of each island.
        lose: is called with the island whose devices are lost, and what they failed with.
        give_back: is called with the island whose devices answer again.
        answers: returns whether a device computes.
        every: seconds between two questions to devices that are lost.
    """

    def __init__(
        self,
        islands: Sequence[Sequence[Any]],
        lose: Callable[[int, str], None],
        give_back: Callable[[int], None],
        answers: Callable[[Any], bool] = answers,
        every: float = EVERY,
    ):
        super().__init__(name="pathways-losses", daemon=True)
        self._islands, self._lose, self._give_back = islands, lose, give_back
        self._answers, self._every = answers, every
        self._inbox: queue.SimpleQueue[tuple[int, str, bool] | None] = queue.SimpleQueue()
        self.lost: set[int] = set()
        """Islands whose devices are lost."""

    def suspect(self, island: int, why: str, is_certain: bool) -> None:
        """Note that an island's devices may be lost; any thread may.

        Args:
            island: its index.
            why: what they failed with.
            is_certain: whether what they held is gone, even if they answer again by now.
        """
        self._inbox.put((island, why, is_certain))

    def stop(self) -> None:
        """End after the question that is under way."""
        self._inbox.put(None)

    def run(self) -> None:
        """Ask until stopped."""
        while self._next():
            pass

    def _next(self) -> bool:
        try:
            doubt = self._inbox.get(timeout=self._every if self.lost else None)
        except queue.Empty:
            self.look_for_returns()
            return True
        # Many nodes fail by one loss: their devices are asked once.
        doubts = dict[int, tuple[str, bool]]()
        while doubt is not None:
            island, why, is_certain = doubt
            doubts[island] = why, is_certain or doubts.get(island, ("", False))[1]
            if self._inbox.empty():
                break
            doubt = self._inbox.get()
        for island, (why, is_certain) in doubts.items():
            self.look(island, why, is_certain)
        return doubt is not None

    def look(self, island: int, why: str, is_certain: bool) -> None:
        """Ask the devices of an island that may be lost."""
        if island not in self.lost and (is_certain or not self._all_answer(island)):
            self.lost.add(island)
            self._lose(island, why)

    def look_for_returns(self) -> None:
        """Ask the devices of islands that are lost."""
        for island in sorted(self.lost):
            if self._all_answer(island):
                self.lost.discard(island)
                self._give_back(island)

    def _all_answer(self, island: int) -> bool:
        return all(map(self._answers, self._islands[island]))
