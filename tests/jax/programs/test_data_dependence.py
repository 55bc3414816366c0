"""Where Python stopped for a value: marked on the node that makes it, once with a count, and on the timeline."""

from __future__ import annotations

import asyncio
import sys

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.results.executed_program import ExecutedProgram

v = np.arange(8, dtype=np.float32)


@pytest.fixture
def total(right) -> pw.Computation:
    return pw.jit(lambda v: v.sum(), on=right, in_shardings=pw.P("x"))


@pytest.fixture
def step(a, total) -> pw.Program:
    return pw.program(lambda v: (a(v), total(a(v))), name="step")


def marks(program: ExecutedProgram) -> list[tuple[str, str, int]]:
    """(place of the node, line, count) of each mark."""
    place = {node.id: node.place.label if node.place else node.name for node in program.graph.nodes}
    return [(place[node], line, count) for node, (line, count) in program.needed.items()]


def line(back: int = 0) -> str:
    """The caller's line, as marks write it."""
    return f"test_data_dependence.py:{sys._getframe(1).f_lineno - back}"


def test_a_branch_marks_the_node_whose_value_it_needs(a, total) -> None:
    with pw.record() as run:
        x = a(v)
        y = total(x)
        if float(y) > 0:
            stopped = line(1)
            z = a(x)
    first, second = run.programs
    assert marks(first) == [("right", stopped, 1)]
    assert marks(second) == []
    np.testing.assert_array_equal(z.result(), v * 4)
    assert marks(second) == [], "the record was over"


def test_a_loop_that_prints_now_and_then_is_marked_once_with_a_count(step) -> None:
    with pw.record() as run:
        x, said = v, []
        for i in range(12):
            x, value = step(x)
            if i % 4 == 0:
                said.append(f"{value:.0f}")
                stopped = line(1)
    (program,) = run.programs
    assert (program.runs, said) == (12, ["56", "896", "14336"])
    assert marks(program) == [("right", stopped, 3)]


def test_one_value_read_twice_is_counted_once_and_two_nodes_have_two_marks(step) -> None:
    with pw.record() as run:
        x, value = step(v)
        both = float(value) + float(value)
        pw.get((x, value))
        stopped = line(1)
    (program,) = run.programs
    assert both == 112
    assert [(place, count) for place, _, count in marks(program)] == [("right", 1), ("left", 1)]
    assert marks(program)[1][1] == stopped


@pytest.mark.parametrize(
    "code", ["float(y)", "bool(y)", "f'{y:.1f}'", "y.result()", "np.asarray(y)", "y.array()", "pw.get([y])"]
)
def test_whatever_needs_the_value_is_told_with_its_line_on_graph_and_timeline(total, code) -> None:
    with pw.record() as run:
        y = total(v)
        exec(compile(code, "mine.py", "exec"), {"y": y, "np": np, "pw": pw})
    assert marks(run.programs[0]) == [("right", "mine.py:1", 1)]
    events = run.events.of_kind("wait", "fetch")
    assert set(events["line"]) == {"mine.py:1"}
    assert ("fetch" in events["kind"]) == (code != "y.array()")


def test_waiting_needs_no_value_but_the_timeline_tells_the_line(step, a) -> None:
    with pw.record() as run:
        x, value = pw.wait(step(v))
        stopped = line(1)
        assert value.done()
        assert x.shape == v.shape
    assert marks(run.programs[0]) == []
    assert set(run.events.of_kind("wait")["line"]) <= {stopped}


def test_a_run_without_fetches_has_no_marks(step, a) -> None:
    with pw.record() as run:
        x, value = step(v)
        a(x)
    ran = step.run(v)
    assert float(value) == 56
    assert [program.needed for program in (*run.programs, *ran.programs)] == [{}, {}, {}]
    assert len(run.events.of_kind("fetch")) == 0


def test_a_value_from_before_the_record_marks_nothing_in_it(step) -> None:
    _, before = step(v)
    with pw.record() as run:
        float(before)
        step(v)
    assert [program.needed for program in run.programs] == [{}]


def test_an_awaited_value_names_the_line_of_the_await(total) -> None:
    async def cell() -> tuple[pw.Run, str]:
        with pw.record() as run:
            await total(v)
            return run, line(1)

    run, stopped = asyncio.run(cell())
    assert marks(run.programs[0]) == [("right", stopped, 1)]


def test_an_argument_that_is_handed_back_marks_the_result(controller, a) -> None:
    through = pw.program(lambda v: (v, a(v)), name="through")
    with pw.record() as run:
        float(through(v)[0].result()[0])
        stopped = line(1)
    assert marks(run.programs[0]) == [("result", stopped, 1)]


def test_records_within_records_mark_their_own_program_and_add_up(step) -> None:
    with pw.record("outer") as outer:
        _, mine = step(v)
        with pw.record("inner") as inner:
            _, theirs = step(v)
            float(theirs)
            float(mine)
    assert [count for _, _, count in marks(inner.programs[0])] == [1]
    assert [count for _, _, count in marks(outer.programs[0])] == [2]


def test_marks_are_saved_and_come_back(step, tmp_path) -> None:
    with pw.record() as run:
        for _ in range(2):
            float(step(v)[1])
    run.save(tmp_path / "a.run")
    again = pw.load(tmp_path / "a.run")
    assert [program.needed for program in again.programs] == [program.needed for program in run.programs]
    assert marks(again.programs[0])[0][2] == 2
    assert again.events.of_kind("fetch")["line"].tolist() == run.events.of_kind("fetch")["line"].tolist()
