"""What of collectives, copies and transfers lies under computation: against a count of small steps of time."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pathways_nb.trace.launch_ops import Op, OpKind, Ops
from pathways_nb.trace.op_hiding import exposed_by_line, exposed_seconds, hidden_behind


def op(name: str, kind: OpKind, start: float, end: float, device: int = 0, line: str = "", source: str = "") -> Op:
    return Op(name, source, kind, "step", "train", 0, 0, 0, device, start, end, line)


@pytest.mark.parametrize("seed", range(20))
def test_exposed_is_what_no_computation_of_the_device_covers(seed: int) -> None:
    rng = random.Random(seed)
    kinds: tuple[OpKind, ...] = ("compute", "copy", "collective", "prefetch", "dcn", "host", "wait")
    rows = []
    for number in range(40):
        start = rng.randrange(90)
        rows.append(op(f"op{number}", rng.choice(kinds), start, start + rng.randrange(1, 10), rng.randrange(2)))
    found = exposed_seconds(Ops.from_rows(rows))
    for one, exposed in zip(rows, found.tolist(), strict=True):
        under = [o for o in rows if o.device == one.device and o.kind in ("compute", "copy")]
        free = [t for t in range(int(one.start), int(one.end)) if not any(o.start <= t < o.end for o in under)]
        assert exposed == pytest.approx(0 if one.kind in ("compute", "copy", "wait") else len(free))


ROWS = [
    op("gather", "collective", 0, 4, line="train.py:3"),
    op("small", "compute", 0, 1),
    op("large", "compute", 1, 3),
    op("sum", "collective", 4, 6, source="jit(f)/psum"),
    op("prefetch", "prefetch", 5, 6, line="train.py:9"),
    op("send", "dcn", 6, 7),
    op("last", "compute", 7, 9),
    op("hidden", "collective", 7, 8, line="train.py:3"),
]


def test_communication_is_added_up_by_line_else_source_else_name() -> None:
    assert exposed_by_line(Ops.from_rows(ROWS)) == [("jit(f)/psum", 2.0), ("train.py:3", 1.0), ("send", 1.0)]


def test_words_name_the_computation_that_hides_most() -> None:
    ops = Ops.from_rows(ROWS)
    assert hidden_behind(ops, exposed_seconds(ops)) == [
        *("25% exposed, behind large", "", "", "exposed", "exposed", "exposed", "", "hidden, behind last"),
    ]


def test_without_ops_nothing_is_exposed() -> None:
    assert exposed_seconds(Ops()).tolist() == []
    assert exposed_by_line(Ops()) == []
    assert hidden_behind(Ops(), np.zeros(0)) == []
