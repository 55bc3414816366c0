"""Questions to columns of numbers."""

from __future__ import annotations

import numpy as np


def last_before(sources: np.ndarray, there: tuple[np.ndarray, ...], asked: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return for each query the last of ``sources`` with the same keys that is not later; -1 for none.

    One sort of sources and queries together answers all queries at once.

    Args:
        sources: positions to choose from.
        there: a time or position of each source, then its keys.
        asked: the same columns of the queries.
    """
    # (sources + queries,) each: the sources, then the queries.
    columns = [np.concatenate(pair) for pair in zip(there, asked, strict=True)]
    asks = np.arange(len(columns[0])) >= len(sources)
    # By keys, then time (the last column counts most); at equal times sources first, as they are not later.
    order = np.lexsort((asks, *columns))
    # For each position in this order, that of the last source up to there, of whatever keys; -1 for none.
    last = np.maximum.accumulate(np.where(asks[order], -1, np.arange(len(order))))
    # It counts only if its keys are those of the query: otherwise there is no source with these keys before it.
    same = last >= 0
    for key in columns[1:]:
        same &= key[order][last] == key[order]
    # Back to the order in which they were asked.
    found = np.empty(len(order), np.int64)
    found[order] = order[last]
    found[order[~same]] = -1
    return np.where(found >= 0, np.append(sources, -1)[np.minimum(found, len(sources))], -1)[len(sources) :]
