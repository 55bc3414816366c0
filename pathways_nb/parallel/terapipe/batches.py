"""How a batch is divided into groups of sequences that are sliced together: a knapsack under one shared bound."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Batches(NamedTuple):
    """The best division of batches of every size, for each of some bounds.

    Attributes:
        sums: seconds of all slices, of shape (batch + 1, bounds).
        largest: seconds of the largest slice, of the same shape.
        last: sequences of the last group, of the same shape.
    """

    sums: np.ndarray
    largest: np.ndarray
    last: np.ndarray

    def groups(self, bound: int) -> list[int]:
        """Return the sizes of the groups of the whole batch, for one of the bounds."""
        found, rest = [], len(self.last) - 1
        while rest:
            # From the end: only there is the whole batch divided best.
            found.append(int(self.last[rest, bound]))
            rest -= found[-1]
        return found


def divide_batch(sums: np.ndarray, largest: np.ndarray, batch: int) -> Batches:
    """Return the division with the least sum: ``g(a) = min over b of g(a - b) + sums(b)``.

    Args:
        sums: least seconds of a group, by its size and the bound; infinite where there is none.
        largest: seconds of the largest slice of the group.
        batch: number of sequences.
    """
    groups, bounds = sums.shape
    columns = np.arange(bounds)
    total, most = np.zeros((batch + 1, bounds)), np.zeros((batch + 1, bounds))
    last = np.zeros((batch + 1, bounds), np.intp)
    for size in range(1, batch + 1):
        count = min(size, groups)
        # (groups, bounds): with a last group of 1, 2, … sequences, the rest before it is one, two, … sequences smaller.
        candidates = total[size - count : size][::-1] + sums[:count]
        chosen = candidates.argmin(axis=0)
        total[size], last[size] = candidates[chosen, columns], chosen + 1
        most[size] = np.maximum(most[size - chosen - 1, columns], largest[chosen, columns])
    return Batches(total, most, last)


def least_bound(bottlenecks: np.ndarray, batch: int) -> float:
    """Return the least bound under which a batch can be divided.

    Args:
        bottlenecks: least bound of each group size.
        batch: number of sequences.
    """
    least = np.zeros(batch + 1)
    for size in range(1, batch + 1):
        count = min(size, len(bottlenecks))
        # The same recurrence with a maximum in place of the sum.
        least[size] = np.maximum(least[size - count : size][::-1], bottlenecks[:count]).min()
    return float(least[-1])
