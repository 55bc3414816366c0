"""Ranges that were sent to hosts and have not ended on all of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import NamedTuple

from pathways_nb.runtime.hosts.reports import RangeEnded
from pathways_nb.util.words import counted


class RangeKey(NamedTuple):
    """A range of a run's order on an island."""

    run: int
    island: int
    start: int
    stop: int


@dataclass(eq=False)
class _Range:
    hosts: int
    seconds: float = 0.0


class RangesOut:
    """The ranges, by key; any thread may ask and change them."""

    def __init__(self) -> None:
        self._out: dict[RangeKey, _Range] = {}
        self._counting = threading.Lock()

    def __len__(self) -> int:
        return len(self._out)

    def add(self, key: RangeKey, hosts: int) -> None:
        """Count a range that goes to so many hosts."""
        with self._counting:
            self._out[key] = _Range(hosts)

    def ended(self, island: int, report: RangeEnded) -> float | None:
        """Count one host more on which a range has ended.

        Returns:
            The most device-seconds that it took on a host, if it has ended on all now; ``None`` if it has not, or was
            given up meanwhile.
        """
        key = RangeKey(report.run, island, report.start, report.stop)
        with self._counting:
            found = self._out.get(key)
            if found is None:
                return None
            found.hosts, found.seconds = found.hosts - 1, max(found.seconds, report.device_seconds)
            return None if found.hosts else self._out.pop(key).seconds

    def on(self, island: int) -> set[RangeKey]:
        """Return the ranges of an island."""
        with self._counting:
            return {key for key in self._out if key.island == island}

    def islands(self) -> set[int]:
        """Return the islands that have any."""
        with self._counting:
            return {key.island for key in self._out}

    def any_of(self, keys: set[RangeKey]) -> bool:
        """Return whether any of some ranges has not ended."""
        return bool(keys & self._out.keys())

    def give_up(self, island: int | None = None) -> list[RangeKey]:
        """Forget the ranges of an island, or all, and return them in the order in which they were sent."""
        with self._counting:
            found = [key for key in self._out if island is None or key.island == island]
            for key in found:
                del self._out[key]
        return found

    def lines(self) -> list[str]:
        """Return what is waited for, a line each; takes no lock."""
        return [
            f"run {key.run}: {counted(one.hosts, 'host')} of island {key.island} to end steps {key.start} to "
            f"{key.stop - 1}"
            for key, one in list(self._out.items())
        ]
