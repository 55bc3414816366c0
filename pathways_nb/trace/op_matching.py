"""The ops of two runs compared: what was predicted of a launch with what a profiler saw of it, or two predictions.

Two compilers, or two versions of one, name and fuse operations differently. So an op is known by what it stems from in
the program (scope and line), by whether it works or exchanges, and by its place in the order of these.
What stems from nothing that is known, such as a copy of the compiler's own, is known by its name without number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from pathways_nb.trace.launch_ops import Op, Ops
from pathways_nb.trace.matching import TIMES, Difference
from pathways_nb.trace.op_hiding import COMMUNICATION

_NODE = re.compile(r"^jit\(pw_([^)]*)\)/(?:jit\(\1\)/)?")
"""The node of a controller around a jitted function, or in its place."""
OP_KEYS = ("kind", "phase", "source", "line", "name_a", "name_b", "turn", "occurrence")
"""Columns of a comparison of ops: what both have in common, their names, which launch of each, which occurrence."""


def compare_ops(first: Ops, second: Ops) -> Difference:
    """Match the ops of one device of each side, launch by launch.

    Every device does the same, so the first one that has ops stands for all.

    Args:
        first: of one run.
        second: of another one.

    Returns:
        Columns ``OP_KEYS``, ``where`` (line, else source, else name) and ``TIMES``; times in seconds since the first op
        of their launch.
    """
    # A text without tables of lines has none for any op, and then lines say nothing.
    with_lines = all((ops["line"] != "").any() for ops in (first, second))
    a, b = (_known(ops, with_lines) for ops in (first, second))
    rows = []
    for key in a:
        if key not in b:
            continue
        (one, begins, took), (other, starts, takes) = a[key], b[key]
        where = one.line or one.source or _stem(one.name)
        said = one.kind, one.phase or other.phase, one.source, one.line, one.name, other.name, key[-2], key[-1], where
        rows.append((*said, begins, starts, took, takes, takes - took))
    names = (*OP_KEYS, "where", *TIMES)
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    words = (*OP_KEYS[:6], "where")
    table = {name: np.array(list(values), object if name in words else None)
             for name, values in zip(names, columns, strict=True)}  # fmt: skip
    return Difference(table, len(a) - len(rows), len(b) - len(rows), ("where",))


class MatchedOps(NamedTuple):
    """The ops of two runs.

    Args:
        pairs: of an op of the first and its partner.
        only_a: those of the first without a partner.
        only_b: those of the second without one.
    """

    pairs: list[tuple[KnownOp, KnownOp]]
    only_a: list[KnownOp]
    only_b: list[KnownOp]


def matched_ops(first: Ops, second: Ops, same_code: bool = False) -> MatchedOps:
    """Match the ops of one device of two versions of a program, in which equal operations may stand on other lines.

    Args:
        first: of one version.
        second: of the other one.
        same_code: whether a line has the same text in both. Then an op matches those of its own line alone, and what
            stands on a line that only one version has matches by scope and order.

    Returns:
        Pairs of ops, and those of each side without a partner.
    """
    own, others = (set(ops["line"].tolist()) for ops in (first, second))
    # Else lines count only where both versions have the same, or one that was inserted would leave nothing to match.
    with_lines = same_code or own == others
    a, b = (_known(ops, with_lines) for ops in (first, second))
    pairs = [(one, b[key]) for key, one in a.items() if key in b]
    only_a = {key: one for key, one in a.items() if key not in b}
    only_b = {key: one for key, one in b.items() if key not in a}
    moved, come = _elsewhere(only_a, others), _elsewhere(only_b, own)
    for key in moved.keys() & come.keys():
        pairs.append((only_a.pop(moved[key]), only_b.pop(come[key])))
    return MatchedOps(pairs, list(only_a.values()), list(only_b.values()))


def _elsewhere(known: dict[tuple[Hashable, ...], KnownOp], lines: set[str]) -> dict[Hashable, tuple[Hashable, ...]]:
    """Return what ops are known by, by scope and order alone, of those on lines that the other version lacks.

    Args:
        known: the ops, by what they are known by.
        lines: of the other version.
    """
    seen, found = Counter[Hashable](), dict[Hashable, tuple[Hashable, ...]]()
    for key, one in known.items():
        if one.op.line and one.op.line not in lines:
            kind, scope, _, turn, _ = key
            found[kind, scope, turn, seen[kind, scope, turn]] = key
            seen[kind, scope, turn] += 1
    return found


class KnownOp(NamedTuple):
    """An op with all that ran under its name at once.

    Args:
        op: the first of it.
        start: in seconds since its launch began.
        takes: seconds of all of it.
    """

    op: Op
    start: float
    takes: float


def _known(ops: Ops, with_lines: bool) -> dict[tuple[Hashable, ...], KnownOp]:
    """Return the ops of one device by what they are known by.

    Args:
        ops: of a run.
        with_lines: whether lines count.
    """
    if not len(ops):
        return {}
    ops = ops.of(island=int(ops["island"].min()))
    ops = ops.of(device=int(ops["device"].min()))
    ops = ops.select(np.argsort(ops["start"], kind="stable"))
    seen: Counter[Hashable] = Counter()
    begins, found = dict[Hashable, tuple[int, float]](), dict[tuple[Hashable, ...], KnownOp]()
    last = dict[
        tuple[str, int], tuple[str, tuple[Hashable, ...]]
    ]()  # by kind and launch, the name of the last op, and what it is known by
    for op in ops:
        turn, begin = begins.setdefault((op.launch, op.run), (len(begins), op.start))
        if op.kind == "wait":  # follows from the others
            continue
        # One compiler copies with a kernel what another one has copied: that is work either way.
        kind = "communication" if op.kind in COMMUNICATION else "work"
        if last.get((kind, turn), ("", ()))[0] == op.name:
            # One op may be several kernels, such as one that clears memory for the one that multiplies.
            same = last[kind, turn][1]
            before = found[same]
            found[same] = before._replace(takes=before.takes + op.end - op.start)
            continue
        known = (_scope(op.source), op.line if with_lines else "") if op.source or op.line else (_stem(op.name), "")
        key = kind, *known, turn
        last[kind, turn] = op.name, (*key, seen[key])
        found[*key, seen[key]] = KnownOp(op, op.start - begin, op.end - op.start)
        seen[key] += 1
    return found


def _scope(source: str) -> str:
    """Return what an op stems from: the first part of what was fused, and a step that is a node without the node."""
    return _NODE.sub(r"jit(\1)/", source.partition(";")[0])


def _stem(name: str) -> str:
    """Return the name of an op without its number."""
    return name.rstrip("0123456789").rstrip(".")
