"""What the boxes of many merged events stand for, as text: their nodes, and what a filter looks at.

A merged box names its nodes, as far as they are few, so that the links between the graph and the timeline work at any
zoom.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import QUALITIES
from pathways_widgets.drawing.views import SIDES, Columns, Words, node_id
from pathways_widgets.timeline.event_filter import facts_of, joined
from pathways_widgets.timeline.level_of_detail import MOST_CELLS, Boxes


def guesses(boxes: Boxes, events: Events) -> np.ndarray:
    """Return for each box how its stamps are known, as in ``QUALITIES``; of merged events the least exact."""
    quality = events.stored("quality").astype(np.int64)
    # (qualities,) simulated stamps are exact.
    rank = np.array([{"estimated": 1, "interpolated": 2}.get(name, 0) for name in QUALITIES])
    worst = np.zeros(len(boxes.track), np.int64)
    np.maximum.at(worst, boxes.box_of, rank[quality[boxes.members]])
    known = np.array([QUALITIES.index(name) for name in ("exact", "estimated", "interpolated")])
    return np.concatenate([quality[boxes.alone], known[worst]])


def clusters(columns: Columns, which: np.ndarray, apart: float) -> Columns:
    """Return one box around each group of boxes that are too narrow for an edge of their own.

    Args:
        columns: the columns of the boxes.
        which: the narrow boxes.
        apart: seconds between two boxes of a lane from which on they are of two groups; the least width of a group.
    """
    order = which[np.lexsort((columns["left"][which], columns["bottom"][which], columns["top"][which]))]
    left, right, top, bottom = (columns[side][order] for side in SIDES)
    same = (top[1:] == top[:-1]) & (bottom[1:] == bottom[:-1]) & (left[1:] - right[:-1] < apart)
    first = np.flatnonzero(np.concatenate([[True], ~same])) if len(order) else np.zeros(0, np.int64)
    ends = np.maximum.reduceat(right, first) if len(order) else right
    found: Columns = {"left": left[first], "right": np.maximum(ends, left[first] + apart)}
    return found | {"top": top[first], "bottom": bottom[first], "box": order[first].astype(np.int32)}


def joined_columns(*parts: Columns) -> Columns:
    """Return tables of the same columns as one."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def programs_of(facts: Words, merged: int) -> list[str]:
    """Return the programs of merged boxes, in words; nothing where that is none.

    Args:
        facts: the facts of all boxes, those of merged ones last.
        merged: how many these are.
    """
    texts: dict[int, str] = {}
    for number in facts.numbers[len(facts) - merged :].tolist():
        if number not in texts:
            found = (program for group in json.loads(facts.words[number] or "[]") for program in group["program"])
            names = list(dict.fromkeys(filter(None, found)))
            texts[number] = ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} programs"
    return [texts[number] for number in facts.numbers[len(facts) - merged :].tolist()]


def first_labels(boxes: Boxes, events: Events) -> list[int]:
    """Return for each merged box the label of one of its events; all are in one lane."""
    _, first = np.unique(boxes.box_of, return_index=True)
    return events.label[boxes.members[first]].tolist()


_MOST_NAMES = 3
MOST_IDS = 32
"""Largest number of nodes that a merged box names one by one."""


def facts_column(boxes: Boxes, events: Events, islands: Sequence[str]) -> Words:
    """Return what the filter looks at; nothing for a box of so many different events that any filter may want some."""
    numbers = events.label
    used = np.flatnonzero(np.bincount(numbers[np.concatenate([boxes.alone, boxes.members])])).tolist()
    texts = {number: joined([facts_of(events.labels[number], islands)]) for number in used}
    words = {word: position for position, word in enumerate(dict.fromkeys(texts.values()))}
    # (labels,) the words of each label that occurs.
    of = np.zeros(len(events.labels), np.int64)
    of[used] = [words[texts[number]] for number in used]
    found: list[list[int]] = [[] for _ in boxes.track]
    for box, word in zip(*_pairs(boxes.box_of, of[numbers[boxes.members]], len(found), len(words)), strict=True):
        found[box].append(word)
    # Many boxes have the same few labels, so a text is made once for all of these.
    known = [json.loads(word)[0] for word in words]
    of_some = {some: joined(known[word] for word in some) for some in set(map(tuple, found)) if len(some) <= MOST_IDS}
    merged = [of_some.get(tuple(some), "") for some in found]
    for word in merged:
        words.setdefault(word, len(words))
    of_merged = np.array([words[word] for word in merged], np.int64)
    return Words(list(words), np.concatenate([of[numbers[boxes.alone]], of_merged]).astype(np.uint32))


def merged_ids(boxes: Boxes, events: Events) -> list[str]:
    """Return the ids of the nodes that each merged box stands for; for more than ``MOST_IDS`` of them ``program#*``."""
    found: list[list[str]] = [[] for _ in boxes.track]
    ids = [node_id(label.program, label.node) for label in events.labels]
    wholes = [id and f"{id.rpartition('#')[0]}#*" for id in ids]
    words = list(dict.fromkeys(wholes))
    whole_of = np.array([words.index(whole) for whole in wholes], np.int64)
    numbers = events.label[boxes.members]
    box, node = _pairs(boxes.box_of, numbers, len(found), len(ids))
    # A box of very many nodes names their programs only: a list of ids would be longer than all other columns.
    is_dense = np.bincount(box, minlength=len(found)) > MOST_IDS
    # (pairs,) whether the box of a pair of box and node is named node by node.
    few = ~is_dense[box]
    for position, number in zip(box[few].tolist(), node[few].tolist(), strict=True):
        found[position].append(ids[number])
    if is_dense.any():
        box, whole = _pairs(boxes.box_of, whole_of[numbers], len(found), len(words))
        for position, number in zip(box[is_dense[box]].tolist(), whole[is_dense[box]].tolist(), strict=True):
            found[position].append(words[number])
    return [" ".join(filter(None, one)) for one in found]


def _pairs(one: np.ndarray, other: np.ndarray, ones: int, others: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct pairs of two columns of numbers.

    Args:
        one: numbers below ``ones``.
        other: numbers below ``others``.
        ones: bound of the first column.
        others: bound of the second column.
    """
    # Both numbers as one, which counts and sorts faster than rows of two.
    pairs = one * others + other
    if ones * others <= MOST_CELLS:  # for few possible pairs a table is faster than sorting
        table = np.zeros(ones * others, bool)
        table[pairs] = True
        pairs = np.flatnonzero(table)
    else:
        pairs = np.unique(pairs)
    return pairs // max(others, 1), pairs % max(others, 1)
