"""Collectives as the ranks of a group sent them, and the first that is not the same on all: plain data.

``comparisons.rank_orders`` finds it in recorded runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import NamedTuple

from pathways_nb.errors import size
from pathways_nb.util.words import first_ones

_NAMED = 4
"""Ranks that a text names."""


class SentCollective(NamedTuple):
    """One collective as one rank sent it.

    Args:
        kind: such as ``"allreduce"``.
        bytes: 0 if unknown.
        detail: the type of its elements, or what else is known of it; empty if unknown.
        name: of the kernel or the operation.
        start: in seconds since the run began.
    """

    kind: str
    bytes: int
    detail: str
    name: str
    start: float

    @property
    def known(self) -> tuple[str, int, str]:
        """What must be the same on all ranks."""
        return self.kind, self.bytes, self.detail

    def __str__(self) -> str:
        what = f"{self.kind} of {size(self.bytes)}" if self.bytes else self.kind
        return f"{what} {self.detail}".rstrip()


class OrderDifference(NamedTuple):
    """The first collective of a group that is not the same on all ranks.

    Args:
        group: of ranks, in words.
        position: of the collective among those of the group, from 0.
        sent: by rank, the collective; ``None`` where a rank has sent no more.
    """

    group: str
    position: int
    sent: Mapping[Hashable, SentCollective | None]

    @property
    def odd(self) -> tuple[Hashable, ...]:
        """The ranks that differ from most."""
        ((usual, _),) = Counter(map(known_of, self.sent.values())).most_common(1)
        return tuple(rank for rank, one in self.sent.items() if known_of(one) != usual)

    def __str__(self) -> str:
        odd = self.odd
        agree = [rank for rank in self.sent if rank not in odd]
        usual, others = self.sent[agree[0]], first_ones(list(map(str, agree)), _NAMED)
        said = "; ".join(f"on {rank_words(rank)} it is {self._words(self.sent[rank])}" for rank in odd[:_NAMED])
        at = f"collective {self.position} of {self.group}"
        return f"{at}: {said}; on the others ({others}) it is {self._words(usual)}"

    def _words(self, one: SentCollective | None) -> str:
        return "none, as it sent no more or its trace ends" if one is None else f"{one} at {one.start:.6f} s"


def rank_words(rank: Hashable) -> str:
    """Return a rank in words, which the user may have named so."""
    return str(rank) if str(rank).startswith("rank") else f"rank {rank}"


def known_of(one: SentCollective | None) -> tuple[str, int, str] | None:
    """Return what must be the same on all ranks; ``None`` where a rank sent no more."""
    return None if one is None else one.known
