"""Which lines take longer in one of two steps: of the same code on two meshes, and of two versions."""

from __future__ import annotations

import pathways_nb as pw
from pathways_nb.comparisons.step_comparison import lines_of
from pathways_nb.plan.source_texts import SourceTexts
from pathways_nb.trace.launch_ops import Op, OpKind, Ops
from pathways_nb.trace.op_graph import OpGraph

TEXTS = SourceTexts({"t.py": ((3, "up = x @ w"), (5, "down = up @ v"))})
MOVED = SourceTexts({"t.py": ((3, "# inserted"), (4, "up = x @ w"), (6, "down = up @ v"))})


def run_of(texts: SourceTexts, *ops: tuple[str, OpKind, float]) -> pw.Run:
    """A step whose operations run one after the other: line, kind and seconds of each."""
    run, begin, rows = pw.Run("step", (1,)), 0.0, []
    for number, (line, kind, seconds) in enumerate(ops):
        words = f"op.{number}", "jit(f)/dot_general", kind, "step", "f", 0, 0, 0, 0
        rows.append(Op(*words, begin, begin + seconds, f"t.py:{line}"))
        begin += seconds
    run.ops, run.op_graph = Ops.from_rows(rows), OpGraph(texts=texts)
    return run


def test_texts_agree_where_no_line_has_moved():
    assert TEXTS.agrees_with(SourceTexts({"t.py": ((5, "down = up @ v"), (9, "loss"))}))
    assert not TEXTS.agrees_with(MOVED)
    assert not TEXTS.agrees_with(SourceTexts({"other.py": ((3, "up = x @ w"),)}))


def test_a_line_of_the_same_code_is_compared_with_itself_however_many_ops_a_compiler_makes_of_it():
    a = run_of(TEXTS, ("3", "compute", 1.0), ("3", "compute", 1.0), ("5", "compute", 4.0), ("8", "collective", 7.0))
    b = run_of(TEXTS, ("3", "compute", 1.5), ("5", "compute", 5.0), ("5", "compute", 2.0))
    rows = [(row.line, row.before, row.after) for row in lines_of(a, b).rows]
    assert rows == [("t.py:5", 4.0, 7.0), ("t.py:3", 2.0, 1.5), ("t.py:8 → nowhere", 7.0, 0.0)]
    assert lines_of(a, b).worst(2) == ["t.py:8 → nowhere: −7 s", "t.py:5: +3 s"]


def test_lines_that_moved_are_matched_by_order():
    a, b = (
        run_of(texts, (one, "compute", 1.0), (two, "compute", 2.0))
        for texts, one, two in ((TEXTS, "3", "5"), (MOVED, "4", "6"))
    )
    assert [row.line for row in lines_of(a, b).rows] == ["t.py:3 → t.py:4", "t.py:5 → t.py:6"]


def test_of_many_lines_those_are_shown_that_differ_most():
    a = run_of(TEXTS, *((str(n), "compute", 1.0) for n in range(1, 31)))
    b = run_of(
        TEXTS, *((str(n), "compute", 0.1 if n == 30 else 2.0 if n == 1 else 1.0 + n * 1e-6) for n in range(1, 31))
    )
    said = repr(lines_of(a, b))
    assert said.startswith("lines, the slower ones first; the 20 of 30 that differ most")
    assert "t.py:30" in said.splitlines()[-1], "what became faster is last"
    assert "t.py:5 " not in said
