"""Ops of two runs matched by scope, line and order: a prediction beside a profile."""

from __future__ import annotations

import pathways_nb as pw
from pathways_nb.trace.launch_ops import Op, Ops
from pathways_nb.trace.op_matching import compare_ops, matched_ops


def op(
    name: str, kind: str, source: str, start: float, end: float, line: str = "", run: int = 0, device: int = 0
) -> Op:
    return Op(name, source, kind, "step", "train", 0, run, 0, device, start, end, line)  # type: ignore[arg-type]


PREDICTED = Ops.from_rows([
    op("all-gather-start.1", "collective", "jit(f)/dot", 0.0, 2.0, "train.py:3"),
    op("fusion.1", "compute", "jit(f)/dot", 0.0, 1.0, "train.py:3"),
    op("wait for all-gather-start.1", "wait", "jit(f)/dot", 1.0, 2.0, "train.py:3"),
    op("fusion.2", "compute", "jit(f)/dot", 2.0, 3.0, "train.py:3"),
    op("fusion.3", "compute", "jit(f)/dot", 3.0, 4.0, "train.py:9"),
    op("copy.7", "copy", "", 4.0, 5.0),
])  # fmt: skip
PROFILED = Ops.from_rows([
    op("gather_kernel", "collective", "jit(f)/dot", 10.0, 12.5, "train.py:3", run=4, device=1),
    op("wrapped_dot.9", "compute", "jit(f)/dot", 10.0, 11.0, "train.py:3", run=4, device=1),
    op("wrapped_dot.8", "compute", "jit(f)/dot", 12.5, 14.5, "train.py:3", run=4, device=1),
    op("copy.2", "copy", "", 14.5, 15.5, run=4, device=1),
    op("copy.2", "copy", "", 14.5, 15.5, run=4, device=2),
    op("wrapped_dot.8", "compute", "jit(f)/dot", 20.5, 24.5, "train.py:3", run=5, device=1),
])  # fmt: skip


def test_ops_are_matched_by_scope_line_and_order():
    found = compare_ops(PREDICTED, PROFILED)
    names = zip(found.table["name_a"], found.table["name_b"], found.table["occurrence"], strict=True)
    assert list(names) == [
        ("all-gather-start.1", "gather_kernel", 0),
        ("fusion.1", "wrapped_dot.9", 0),
        ("fusion.2", "wrapped_dot.8", 1),
        ("copy.7", "copy.2", 0),
    ]
    assert (found.only_a, found.only_b) == (1, 1), "train.py:9 is predicted only, the second step is profiled only"
    assert found.table["start_b"].tolist() == [0.0, 0.0, 2.5, 4.5]
    assert found.table["longer"].tolist() == [0.5, 0.0, 1.0, 0.0]
    assert found.worst() == ["train.py:3: +1.5 s"]


def test_kernels_of_one_op_count_as_one():
    twice = [op("dot.1", "compute", "jit(f)/dot", 0.0, 0.1), op("dot.1", "compute", "jit(f)/dot", 0.1, 2.0)]
    found = compare_ops(Ops.from_rows([op("dot.4", "compute", "jit(f)/dot", 0.0, 3.0)]), Ops.from_rows(twice))
    assert (found.table["takes_b"].tolist(), found.only_b) == ([2.0], 0)


def test_without_lines_on_one_side_the_scope_alone_counts():
    bare = Ops.from_rows([one._replace(line="") for one in PROFILED])
    assert len(compare_ops(PREDICTED, bare)) == 4
    assert compare_ops(PREDICTED, bare).only_a == 1


def test_no_ops_match_nothing():
    found = compare_ops(PREDICTED, Ops())
    assert (len(found), found.only_a, found.only_b) == (0, 5, 0)


def test_ops_of_the_same_code_match_those_of_their_own_line_alone():
    dots = lambda *lines: Ops.from_rows(  # noqa: E731
        [op(f"dot.{at}", "compute", "jit(f)/dot", at, at + 1.0, line) for at, line in enumerate(lines)]
    )
    a, b = dots("t.py:3", "t.py:5", "t.py:5", "t.py:8"), dots("t.py:5", "t.py:3", "t.py:9")
    found = matched_ops(a, b, same_code=True)
    pairs = [(one.op.line, other.op.line) for one, other in found.pairs]
    assert pairs == [("t.py:3", "t.py:3"), ("t.py:5", "t.py:5"), ("t.py:8", "t.py:9")], "lines of one alone: by order"
    assert ([one.op.name for one in found.only_a], found.only_b) == (["dot.2"], [])
    assert [(one.op.line, other.op.line) for one, other in matched_ops(a, b).pairs] == [
        ("t.py:3", "t.py:5"), ("t.py:5", "t.py:3"), ("t.py:5", "t.py:9"),
    ]  # fmt: skip


def test_a_comparison_of_runs_says_how_their_ops_differ():
    a, b = pw.Run("predicted", (1,)), pw.Run("profiled", (1,))
    a.ops, b.ops = PREDICTED, PROFILED
    said = pw.compare(a, b).summary_line()
    assert said.endswith("4 ops matched, 1 and 1 without partner · train.py:3: +1.5 s")
