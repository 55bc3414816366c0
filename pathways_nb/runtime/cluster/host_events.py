"""What a messenger tells its owner: a driver in this process, or a shared controller that tells its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pathways_nb.runtime.hosts.reports import Report


@dataclass(frozen=True, slots=True)
class RangeLost:
    """A range was to run on hosts that are gone; it stands among the reports."""

    run: int
    island: int
    start: int
    stop: int
    why: str


class HostEvents(Protocol):
    """Receives what the messenger finds out, in order."""

    def reported(self, island: int, report: Report | RangeLost) -> None:
        """Take a host's report about a run."""

    def completed(self, run: int, island: int, start: int, stop: int, seconds: float) -> None:
        """Tell the core that a range has ended on all hosts, with the device-seconds that its launches took."""

    def lost(self, island: int, generation: int, why: str) -> None:
        """Fail what needs an island whose hosts died, before anybody else is told."""

    def silent(self, island: int, hosts: dict[int, float]) -> None:
        """Show for how many seconds hosts of an island have not answered, at each look; ``{}`` if all do again."""

    def stands_still(self) -> None:
        """Tell once that hosts have reported nothing for ``STANDSTILL`` seconds though programs are under way."""

    def removed(self, island: int) -> None:
        """Take an island's devices out; called in a thread of its own."""

    def rebuilt(self, island: int) -> None:
        """Take an island's devices in again; called in a thread of its own."""

    def renewed(self, island: int) -> None:
        """Take note that an island without devices has new hosts; called in a thread of its own."""

    def changed(self) -> None:
        """Wake who waits for devices."""

    def broken_by(self, error: BaseException) -> None:
        """End with an error that nobody expected."""
