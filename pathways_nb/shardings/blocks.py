"""The blocks into which shards cut an array, and the devices that hold each; numbers of devices as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from pathways_nb.runtime.lowering.pieces import Box, Shards, volume

Range = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Blocks:
    """The grid of blocks of one array.

    Args:
        ranges: for each dimension, the range of each part, in order.
        holders: for each block, by its position along each dimension, the positions of its devices in the ``Shards``.
    """

    ranges: tuple[tuple[Range, ...], ...]
    holders: dict[tuple[int, ...], list[int]]

    @classmethod
    def of(cls, shards: Shards) -> Blocks:
        """Return the blocks that these devices hold, in row-major order."""
        ranges, columns = [], []
        for low, high in zip(shards.low.T, shards.high.T, strict=True):
            # For one dimension: its different ranges, and (devices,) which of them each device holds.
            parts, column = np.unique(np.stack([low, high], axis=1), axis=0, return_inverse=True)
            ranges.append(tuple(map(tuple, parts.tolist())))
            # NumPy 2.0, unlike versions before and after it, returns a second dimension.
            columns.append(column.reshape(-1))
        # (devices, dimensions); a scalar has one block, whose index is empty.
        index = np.stack(columns, axis=1) if columns else np.zeros((len(shards.devices), 0), int)
        holders: dict[tuple[int, ...], list[int]] = {}
        for position, block in enumerate(map(tuple, index.tolist())):
            holders.setdefault(block, []).append(position)
        return cls(tuple(ranges), dict(sorted(holders.items())))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the largest block."""
        return tuple(max(high - low for low, high in parts) for parts in self.ranges)

    def box(self, block: tuple[int, ...]) -> Box:
        """Return the range of indices of a block."""
        return tuple(parts[at] for parts, at in zip(self.ranges, block, strict=True))

    @cached_property
    def copies(self) -> tuple[int, int]:
        """The fewest and the most devices that hold a block; of an array without elements, too."""
        # Where there are more devices than parts, the last blocks are empty: who holds nothing is no copy.
        counts = [len(held) for block, held in self.holders.items() if volume(self.box(block))]
        counts = counts or [len(held) for held in self.holders.values()]
        return min(counts), max(counts)

    @property
    def is_even(self) -> bool:
        """Whether all blocks have one shape."""
        return all(
            high - low == most for parts, most in zip(self.ranges, self.shape, strict=True) for low, high in parts
        )


def numbers(devices: Sequence[int], most: int = 4) -> str:
    """Return numbers of devices as text: ``"0–3, 8"``, or ``"0, 8, …, 504"`` for many at one distance.

    Args:
        devices: the numbers, rising.
        most: how many ranges to name; if there are more, 1 gives ``"0 … 504"`` and 0 gives ``"0, …"``.
    """
    if most < 2 and devices[-1] - devices[0] >= len(devices):
        return f"{devices[0]} … {devices[-1]}" if most else f"{devices[0]}, …"
    steps = {b - a for a, b in pairwise(devices)}
    # Devices of one mesh axis lie at one distance, often hundreds of them.
    if len(devices) > most and len(steps) == 1 and steps != {1}:
        return f"{devices[0]}, {devices[1]}, …, {devices[-1]}"
    # Runs of neighbouring numbers, each with its first and its last.
    runs: list[list[int]] = []
    for device in devices:
        if runs and device == runs[-1][-1] + 1:
            runs[-1][1:] = [device]
        else:
            runs.append([device])
    words = ["–".join(map(str, run)) for run in runs]
    return ", ".join(words if len(words) <= max(most, 1) else [*words[: most - 1], "…", words[-1]])
