"""Ops inside launches as columns: filtered, and honest about what has no source."""

from __future__ import annotations

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.trace.launch_ops import Op, OpKind, Ops


def op(name: str, start: float, end: float, source: str = "", kind: OpKind = "compute", device: int = 0) -> Op:
    return Op(name, source, kind, "step", "train", 3, 7, 0, device, start, end)


OPS = [
    op("all-gather.1", 0.0, 2.0, "jit(f)/gather/all_gather", "collective"),
    op("fusion", 2.0, 4.5, "jit(f)/tanh"),
    op("copy.2", 4.5, 5.0, kind="copy"),
    op("fusion", 1.0, 4.0, "jit(f)/tanh", device=1),
]


def test_columns_rows_and_slices_say_the_same() -> None:
    ops = Ops.from_rows(OPS)
    assert list(ops) == OPS
    assert (ops[1], ops[-1]) == (OPS[1], OPS[-1])
    assert list(ops[1:3]) == OPS[1:3]
    assert len(ops.labels) == 3, "one for all devices"
    assert ops["name"].tolist() == ["all-gather.1", "fusion", "copy.2", "fusion"]
    assert (ops["node"] == 3).all()
    assert ops["end"].dtype == np.float64
    with pytest.raises(KeyError, match="'opcode' is no column of ops; choose from name, source, kind, launch"):
        ops["opcode"]


def test_every_argument_given_must_match() -> None:
    ops = Ops.from_rows(OPS)
    assert list(ops.of(kind="compute")) == [OPS[1], OPS[3]]
    assert list(ops.of(kind="compute", device=1)) == [OPS[3]]
    assert len(ops.of("step", run=7, island=0)) == 4
    assert len(ops.of("other")) == len(ops.of(run=8)) == 0


def test_the_share_of_time_with_a_source_is_never_rounded_up() -> None:
    ops = Ops.from_rows(OPS)
    assert ops.joined == pytest.approx(7.5 / 8)
    assert repr(ops).startswith("<4 ops, the source of 93.7% of their time known: name, source, kind")
    almost = Ops.from_rows([op("a", 0, 1, "jit(f)/a"), op("b", 1, 1.0001)])
    assert almost.joined_words == "99.9%"


def test_a_run_without_a_profile_has_none_and_says_how_to_get_them() -> None:
    run = pw.Run("plain", (2,))
    assert len(run.ops) == run.ops.joined == 0
    assert "record with pw.profile() or %%pathways --profile" in repr(run.ops)
