"""What a reshard moves: from which device to which, with bytes.

Pieces are those of ``runtime.lowering.pieces``, which moves between places send. On its own devices an array is
resharded by the compiler's collectives instead; the bytes are then the least that any of them could send.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from pathways_nb.errors import size
from pathways_nb.plan.plan import route
from pathways_nb.runtime.lowering.pieces import elements_crossing, elements_lacking, pieces, volume
from pathways_nb.shardings.layout import Layout
from pathways_nb.util.displaying import ShowsItself
from pathways_nb.util.words import counted

MOST_PIECES = 2**18
"""Pieces above which pairs of devices are not listed: making them one by one would take seconds."""
_LISTED = 8
"""Pairs that the text lists one by one."""


@dataclass(frozen=True, eq=False, repr=False)
class Reshard(ShowsItself):
    """What moves when an array gets another layout: what ``pw.show_sharding(…, to=…)`` returns.

    Its text says what crosses between devices; ``show`` and ``savefig`` draw both layouts and the bytes between them.

    Args:
        before: the layout that there is.
        after: the layout that is wanted.
    """

    before: Layout
    after: Layout

    @cached_property
    def bytes_crossing(self) -> int:
        """Bytes that come from another device, all together."""
        return self.before.itemsize * elements_crossing(self.before.shards, self.after.shards)

    @cached_property
    def received(self) -> np.ndarray:
        """Bytes that each device of the layout after receives from others, in its order."""
        # (devices after,)
        return self.before.itemsize * elements_lacking(self.before.shards, self.after.shards)

    @cached_property
    def pairs(self) -> np.ndarray | None:
        """Who sends how much to whom: a row for each pair of devices, with both positions and the bytes.

        Positions are those in the layout before and in the layout after. ``None`` if there are too many pieces.
        """
        return None if self._moves is None else self._moves[~self._is_kept]

    @cached_property
    def kept(self) -> np.ndarray | None:
        """What devices keep, in rows like those of ``pairs``."""
        return None if self._moves is None else self._moves[self._is_kept]

    @cached_property
    def _moves(self) -> np.ndarray | None:
        """The rows of ``pairs`` and ``kept``, by sender and receiver."""
        # Counted before they are made.
        if self._count() > MOST_PIECES:
            return None
        found: dict[tuple[int, int], int] = {}
        for source, target, box in pieces(self.before.shards, self.after.shards):
            found[source, target] = found.get((source, target), 0) + self.before.itemsize * volume(box)
        rows = [(*pair, amount) for pair, amount in sorted(found.items()) if amount]
        # (pairs, 3): position before, position after, bytes. Sizes of arrays exceed 32 bits.
        return np.array(rows, np.int64).reshape(-1, 3)

    @property
    def _is_kept(self) -> np.ndarray:
        """For each of ``_moves``, whether its sender is its receiver."""
        assert self._moves is not None
        # (devices before,) its position after; -1 for a device that is not in the layout after.
        same = np.full(len(self.before.devices), -1)
        same[self.stays[:, 0]] = self.stays[:, 1]
        return same[self._moves[:, 0]] == self._moves[:, 1]

    @cached_property
    def stays(self) -> np.ndarray:
        """Positions before and after of each device that is in both layouts, one row for each."""
        position = {device: at for at, device in enumerate(self.before.devices)}
        both = [(position[device], at) for at, device in enumerate(self.after.devices) if device in position]
        return np.array(both, np.int64).reshape(-1, 2)

    @property
    def _is_elsewhere(self) -> bool:
        """Whether no device is in both layouts."""
        return not len(self.stays)

    def _count(self) -> int:
        """Return the number of pieces, without making them."""
        source, target = self.before.shards, self.after.shards
        counts = np.ones(len(target.devices), np.int64)
        # In each dimension the parts of the source that a target's range touches; their product over all dimensions is
        # the number of its pieces.
        for low, first, last in zip(source.low.T, target.low.T, target.high.T, strict=True):
            edges = np.unique(low)
            # The part that holds the first index begins at or before it.
            begin = np.maximum(np.searchsorted(edges, first, "right") - 1, 0)
            counts *= np.maximum(np.searchsorted(edges, last, "left"), begin + 1) - begin
        return int(counts.sum())

    @property
    def way(self) -> str:
        """How it is carried out, in words."""
        # The same devices in another order count as another place.
        if list(self.before.devices) != list(self.after.devices):
            one, other = self.before.where, self.after.where
            over = f" over {route(one, other)}" if one and other and self._is_elsewhere else ""
            return f"sent in pieces{over}"
        if not self.bytes_crossing:
            return "each device keeps what it holds, or a part of it"
        kind = self._collective
        return f"on the same devices, with the pattern of {kind}" if kind else "on the same devices, by collectives"

    @property
    def _collective(self) -> str:
        """The collective of this pattern, with its article; empty if it is none or not known."""
        before, after = self.before.shards, self.after.shards
        at_before, at_after = self.stays.T
        low, high = before.low[at_before], before.high[at_before]
        # Every device keeps all it had and gets more.
        if np.all((after.low[at_after] <= low) & (high <= after.high[at_after])):
            return "an all-gather"
        if self.pairs is None or self.before.bytes_per_device != self.after.bytes_per_device:
            return ""
        # (devices after,) from how many others each receives.
        partners = np.bincount(self.pairs[:, 1])
        return "a permute" if partners.max(initial=0) <= 1 else "an all-to-all"

    @property
    def heading(self) -> str:
        """What crosses, in one line."""
        kept = int(self.after.itemsize * np.sum(np.prod(self.after.shards.high - self.after.shards.low, axis=1)))
        # What a device of the layout after holds and does not receive, it had.
        kept -= self.bytes_crossing
        return f"{size(self.bytes_crossing)} cross between devices, {size(kept)} stay; {self.way}"

    @cached_property
    def lines(self) -> list[str]:
        """What devices receive, and between how many pairs of devices."""
        least, most = int(self.received.min()), int(self.received.max())
        amount = size(most) if least == most else f"{size(least)} to {size(most)}"
        found = [f"each of {counted(len(self.after.devices), 'device')} receives {amount}"]
        if self.pairs is None:
            return [*found, f"more than {MOST_PIECES} pieces: pairs of devices are not listed"]
        # (pairs,) bytes
        crossing = self.pairs[:, 2]
        if not len(crossing):
            return found
        least, most = int(crossing.min()), int(crossing.max())
        each = size(most) if least == most else f"{size(least)} to {size(most)}"
        return [*found, f"{counted(len(crossing), 'pair')} of devices, {each} in each"]

    def show(self) -> None:
        """Draw both layouts and what moves between them; a script prints the text."""
        from pathways_widgets.shardings.sharding_display import show as show_picture

        show_picture(self)

    def savefig(self, path: str | Path, width: str | float = 900) -> None:
        """Write the picture to a file.

        Args:
            path: file name that ends in ``.svg`` or ``.png``.
            width: of the picture, as for ``Run.savefig``.
        """
        from pathways_widgets.shardings.sharding_display import write

        write(self, path, width)

    def _listed(self) -> Iterator[str]:
        """Yield a line for each of the first pairs of devices."""
        if self.pairs is None:
            return
        ends = (self.before, self.after)
        sender, receiver = (f"{one.place.split(':')[0]} " if self._is_elsewhere else "" for one in ends)
        for source, target, amount in self.pairs[:_LISTED].tolist():
            one, other = self.before.numbers[source], self.after.numbers[target]
            yield f"  {sender}dev {one} → {receiver}dev {other}: {size(amount)}"
        if (more := len(self.pairs) - _LISTED) > 0:
            yield f"  … and {counted(more, 'more pair')}"

    def __repr__(self) -> str:
        ends = (("from", self.before), ("to", self.after))
        both = [line for word, one in ends for line in (f"{word} {one.heading}", *(f"  {line}" for line in one.lines))]
        return "\n".join([*both, self.heading, *self.lines, *self._listed()])
