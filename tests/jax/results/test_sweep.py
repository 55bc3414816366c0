"""A sweep: the whole product in order, what fails is a row, and what was done before an interrupt is kept."""

from __future__ import annotations

import csv
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.results import run as runs
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Label, Row
from pathways_widgets.drawing.plane import Axes, frame


def ran(n: int, policy: str) -> pw.Run:
    """A run of which the makespan is n seconds, twice that under stride; half of one device is busy."""
    record = Record()
    record.add(Row(Label("enqueue", "p", "p", island=0), 0, n * (2 if policy == "stride" else 1), 0))
    record.add(Row(Label("compute", "f", "p", island=0, devices=1), 0, n / 2, 0))
    return runs.Run("mine", (1,), record)


def test_runs_become_columns() -> None:
    found = pw.sweep(ran, n=[1, 2, 4], policy=["fifo", "stride"])
    assert found.columns[:4] == ("n", "policy", "makespan", "utilisation")
    assert found.columns[-1] == "error"
    assert [(row["n"], row["policy"]) for row in found.rows] == list(itertools.product([1, 2, 4], ["fifo", "stride"]))
    np.testing.assert_array_equal(found["makespan"], [1, 2, 2, 4, 4, 8])
    np.testing.assert_array_equal(found["utilisation"], [0.5, 0.25] * 3)
    assert found["policy"].tolist() == ["fifo", "stride"] * 3
    assert all(isinstance(result, pw.Run) for result in found.results)
    assert (len(found), found.points) == (6, 6)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(-5, 5), min_size=1, max_size=4), min_size=1))
def test_every_point_is_called_once_in_the_order_of_nested_loops(axes: dict[str, list[int]]) -> None:
    called = []
    found = pw.sweep(lambda **point: called.append(point) or sum(point.values()), **axes)
    assert [tuple(point.values()) for point in called] == list(itertools.product(*axes.values()))
    assert found["value"].tolist() == [sum(point.values()) for point in called]


def test_a_point_that_fails_is_a_row_with_its_error() -> None:
    found = pw.sweep(lambda n: {"inverse": 1 / n, "even": np.int64(n % 2 == 0)}, n=(1, 0, 4))
    assert found["error"].tolist() == ["", "ZeroDivisionError: division by zero", ""]
    np.testing.assert_array_equal(found["inverse"], [1, np.nan, 0.25])
    assert found.results[1] is None
    assert found.summary_line() == "sweep of <lambda>: 3 points, 1 failed"
    assert repr(found).splitlines()[1:] == [
        "  n  inverse  even                                error",
        "  1        1     0                                     ",
        "  0                 ZeroDivisionError: division by zero",
        "  4     0.25     1                                     ",
    ]
    assert "<td>ZeroDivisionError: division by zero</td>" in found._repr_html_()
    assert "error" not in repr(pw.sweep(lambda n: n, n=[1]))


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ([1], "UsageError: it returned a list; return a run, a dictionary of columns, or a number."),
        (None, "UsageError: it returned a NoneType; return a run"),
        ({"n": 1}, "UsageError: it returned a column 'n', which is there already; give it another name."),
        ({"error": 1}, "UsageError: it returned a column 'error', which is there already"),
    ],
)
def test_a_result_that_is_no_column_is_that_points_error(result: object, text: str) -> None:
    assert pw.sweep(lambda n: result, n=[1])["error"][0].startswith(text)


def test_an_interrupt_keeps_what_is_done_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def at(n: int) -> int:
        if n == 3:
            raise KeyboardInterrupt
        return n * n

    found = pw.sweep(at, n=[1, 2, 3, 4])
    assert found["value"].tolist() == [1, 4]
    assert len(found.results) == 2
    assert found.summary_line() == "sweep of at: 4 points, interrupted, 2 done"
    assert capsys.readouterr().err == "sweep: interrupted; 2 of 4 points are done and kept.\n"


def test_past_two_seconds_a_line_tells_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([0.0, 0.0, 1.5, 2.5, 3.0, 4.0])
    monkeypatch.setattr("pathways_nb.util.progress.monotonic", lambda: next(seconds))
    pw.sweep(lambda n, policy: n, n=[1, 2, 3, 4, 5], policy=[max])
    assert capsys.readouterr().err.splitlines() == [
        "sweep: point 3 of 5: n=3, policy=max (2 s)",
        "sweep: point 5 of 5: n=5, policy=max (4 s)",
    ]


def test_a_table_for_other_tools(tmp_path) -> None:
    found = pw.sweep(lambda n, how: {"takes": n / 4 if how is max else 1 / 0, "note": "a, b"}, n=[1, 2], how=[max, min])
    text = found.to_csv()
    assert list(csv.reader(text.splitlines())) == [
        ["n", "how", "takes", "note", "error"],
        ["1", "max", "0.25", "a, b", ""],
        ["1", "min", "", "", "ZeroDivisionError: division by zero"],
        ["2", "max", "0.5", "a, b", ""],
        ["2", "min", "", "", "ZeroDivisionError: division by zero"],
    ]
    assert found.to_csv(tmp_path / "sweep.csv") is None
    assert (tmp_path / "sweep.csv").read_text() == text


def test_lines_over_numbers_and_over_names() -> None:
    found = pw.sweep(ran, n=[4, 1, 2], policy=["fifo", "stride"])
    at, series = found._series("n", "makespan", ["policy"])
    assert (at, series) == ([1, 2, 4], {"policy fifo": [1, 2, 4], "policy stride": [2, 4, 8]})
    assert found.plot().summary == "last: policy fifo 4, policy stride 8 makespan in s"
    at, series = found._series("policy", "utilisation", ["n"])
    assert (at, list(series)) == (["fifo", "stride"], ["n 4", "n 1", "n 2"])
    figure = found.plot(x="policy", y="utilisation", by="n")
    assert figure.summary == "last: n 4 0.25, n 1 0.25, n 2 0.25 utilisation"
    svg = figure._still().svg()
    assert all(f">{word}</text>" in svg for word in ("fifo", "stride", "n 4", "utilisation over policy"))


def test_what_a_function_calls_makespan_need_not_be_seconds() -> None:
    found = pw.sweep(lambda m: {"makespan": pw.schedule("gpipe", 2, m).makespan()}, m=[1, 2, 3])
    assert found.plot().summary == "last: makespan 12 makespan"


def test_whole_numbers_have_no_ticks_between_them() -> None:
    words = {at: pw.sweep(lambda at: 100 * at, at=at).plot()._still().svg() for at in ((0, 1, 2), (0, 0.5, 2))}
    assert all(f">{tick}</text>" in svg for svg in words.values() for tick in (0, 1, 2))
    assert [">0.5</text>" in svg or ">0.4</text>" in svg for svg in words.values()] == [False, True]
    axes = Axes("at", "value", (0.0, 2.0), (0.0, 1.0), {}, whole=True)
    assert frame("curve", axes, "pan").xaxis[0].ticker.min_interval == 1


def test_points_that_failed_leave_a_hole_in_their_line() -> None:
    found = pw.sweep(lambda n, by: n / (n - 2) if by else n, n=[1, 2, 3], by=[0, 1])
    at, series = found._series("n", "value", ["by"])
    assert (at, series["by 0"]) == ([1, 2, 3], [1, 2, 3])
    np.testing.assert_array_equal(series["by 1"], [-1, np.nan, 3])
    assert found.plot().summary == "last: by 0 3, by 1 3 value"
    assert found.plot()._still().svg()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda s: s.plot(y="makspan"), "plot: there is no column 'makspan'; did you mean 'makespan'? Columns: n, policy,"),
        (lambda s: s.plot(y="policy"), "plot(y='policy'): there are no numbers in that column of sweep of ran: 4 points."),
        (lambda s: s.plot(x="n", by=()), "plot: several points have n=1; tell them apart with by=."),
        (lambda s: s["utilization"], "sweep[…]: there is no column 'utilization'; did you mean 'utilisation'?"),
        (lambda s: pw.sweep(3, n=[1]), "sweep(3): that cannot be called; write pw.sweep(fn, n=[1, 2])."),
        (lambda s: pw.sweep(ran), "sweep: nothing varies; name arguments of the function with their values"),
        (lambda s: pw.sweep(ran, n=1), "sweep(n=1): write a list of values, n=[1]."),
        (lambda s: pw.sweep(ran, n=[1], policy="fifo"), "sweep(policy='fifo'): write a list of values, policy=['fifo']."),
        (lambda s: pw.sweep(ran, n=[]), "sweep(n=[]): there is no value to call the function with."),
        (lambda s: pw.sweep(ran, error=[1]), "sweep(error=…): that is the column of errors"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(wrong, text: str) -> None:
    found = pw.sweep(ran, n=[1, 2], policy=["fifo", "stride"])
    with pytest.raises(pw.UsageError) as refused:
        wrong(found)
    assert text in str(refused.value)


def test_real_runs_are_swept(controller: pw.Controller) -> None:
    def at(seconds: float) -> pw.Run:
        f = pw.work(seconds, on=pw.virtual_slice(2))
        return pw.program(lambda x: f(x)).run(np.float32(1))

    found = pw.sweep(at, seconds=[1e-3, 2e-3])
    assert found["error"].tolist() == ["", ""]
    assert (found["launches"] == 1).all()
    assert (found["makespan"] > 0).all()


def test_a_sweep_without_any_result_says_so_with_the_first_error(capsys) -> None:
    found = pw.sweep(lambda n, m: n / 0, n=[1, 2], m=["a"])
    assert found.summary_line().endswith("2 points, 2 failed")
    assert capsys.readouterr().err.splitlines()[-1] == (
        "sweep: no result: 2 points failed, all there are; the first, n=1, m=a: ZeroDivisionError: division by zero"
    )
    pw.sweep(lambda n: 1 / n, n=[0, 1])
    assert capsys.readouterr().err == ""


def test_the_runs_of_a_sweep_are_drawn_as_small_timelines_named_by_what_varies() -> None:
    found = pw.sweep(lambda n, policy, chip: ran(n, policy), n=[1, 4], policy=["fifo", "stride"], chip=["tpu_v3"])
    figure = found.timelines()
    assert figure.headline == "n=1, policy=fifo is fastest, 8.0 times as fast as n=4, policy=stride"
    named = "n=1, policy=fifo, n=1, policy=stride, n=4, policy=fifo, n=4, policy=stride"
    assert repr(figure) == f"4 runs on one scale: {named}"
    many = pw.sweep(ran, n=range(1, 51), policy=["fifo"]).timelines()
    assert repr(many).startswith("40 runs on one scale: n=1, n=2, ")


def test_points_with_equal_texts_are_all_drawn() -> None:
    figure = pw.sweep(lambda n: ran(round(n), "fifo"), n=[1.0, 1.00001, 2.0]).timelines()
    assert repr(figure) == "3 runs on one scale: n=1, n=1 (2), n=2"


def test_a_sweep_without_runs_has_no_timelines_and_says_so() -> None:
    with pytest.raises(
        pw.UsageError, match=r"^timelines\(\): sweep of <lambda>: 2 points; none returned a run, such as"
    ):
        pw.sweep(lambda n: n, n=[1, 2]).timelines()
