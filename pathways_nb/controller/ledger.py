"""The object store's book-keeping: logical buffers with reference counts and owners (Pathways, section 4.6).

One entry per logical buffer, never per shard. The arrays themselves are the driver's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Buffer:
    """One logical buffer: who owns it, how large it is, and how many handles and runs hold it."""

    owner: str
    bytes: int
    references: int


class Ledger:
    """All logical buffers that somebody holds."""

    def __init__(self) -> None:
        self.buffers: dict[int, Buffer] = {}

    def add(self, buffer: int, owner: str, size: int, references: int) -> None:
        """Enter a new buffer of ``size`` bytes."""
        self.buffers[buffer] = Buffer(owner, size, references)

    def hold(self, buffers: Iterable[int]) -> None:
        """One more reference to each."""
        for buffer in buffers:
            self.buffers[buffer].references += 1

    def drop(self, buffers: Iterable[int]) -> tuple[int, ...]:
        """One reference less to each; those that nobody holds any more are returned and forgotten."""
        freed = []
        for buffer in buffers:
            entry = self.buffers[buffer]
            entry.references -= 1
            if entry.references == 0:
                del self.buffers[buffer]
                freed.append(buffer)
        return tuple(freed)
