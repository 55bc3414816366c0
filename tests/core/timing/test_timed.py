"""Timed tasks against what brute force finds: causes, gaps, slack, time along chains; solved and observed times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb.timing.fixed_order as fixed
from pathways_nb.timing.chains import Chains
from pathways_nb.timing.fixed_order import FixedOrder, OrderEdges
from pathways_nb.timing.timed import Timed
from pathways_nb.timing.waits import DATA, LANE, MESSAGE, WHY, Waits

whole = st.integers(0, 9).map(float)
"""Whole seconds, whose sums are exact."""
parts = st.sampled_from([0.0, 0.25, 0.5, 1.0])


@st.composite
def waiting(draw: st.DrawFn) -> tuple[Waits, np.ndarray, np.ndarray]:
    """Tasks that wait for some before them, what they last, and how long nothing explains that they wait."""
    count = draw(st.integers(1, 12))
    edges = [
        (source, target, draw(st.sampled_from([MESSAGE, LANE, DATA])), draw(parts), draw(whole))
        for target in range(1, count)
        for source in sorted(draw(st.sets(st.integers(0, target - 1), max_size=3)))
    ]
    columns = np.array(edges, float).reshape(-1, 5).T
    lasts, gaps = (np.array(draw(st.lists(whole, min_size=count, max_size=count))) for _ in range(2))
    return Waits.of(*columns), lasts, gaps


def let(waits: Waits, start: Any, lasts: Any) -> list[list[tuple[float, int, int]]]:
    """For each task when each of its edges lets it start, with why and from which task."""
    found: list[list[tuple[float, int, int]]] = [[] for _ in lasts]
    for source, target, why, part, lag in zip(*(column.tolist() for column in waits), strict=True):  # type: ignore[union-attr]
        found[target].append((start[source] + part * lasts[source] + lag, why, source))
    return found


@given(waiting())
def test_each_task_starts_as_soon_as_its_edges_and_its_gap_let_it(drawn: tuple[Waits, np.ndarray, np.ndarray]) -> None:
    waits, lasts, gaps = drawn
    start = FixedOrder.of_waits(len(lasts), waits).evaluate(lasts, gaps).start
    edges = let(waits, start, lasts)
    released = [max((edge[0] for edge in of_task), default=0.0) for of_task in edges]
    assert start.tolist() == (gaps + released).tolist()
    timed = Timed(waits, start, lasts)
    assert timed.gap.tolist() == gaps.tolist()
    for task, of_task in enumerate(edges):
        last = [(why, source) for at, why, source in of_task if at == max(of_task)[0]]
        assert timed.source[task] in [source for why, source in last if why == max(last)[0]] or not of_task
    assert timed.with_durations(lasts).start.tolist() == start.tolist()


@given(waiting(), st.booleans())
def test_both_ways_to_solve_agree(drawn: tuple[Waits, np.ndarray, np.ndarray], narrow: bool) -> None:
    waits, lasts, _ = drawn
    ends = Waits(waits.source, waits.target, waits.why, None, waits.lag)
    expected = Timed.solved(ends, lasts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixed, "_NARROW", 1000 if narrow else 0)
        order = FixedOrder.of(len(lasts), OrderEdges(ends.source, ends.target, ends.lag), [])
        found = order.evaluate(lasts)
        assert found.start.tolist() == expected.start.tolist()
        again = Timed(order.waits, found.start, lasts)
    assert again.latest.tolist() == expected.latest.tolist()
    assert {WHY[why] for why in order.waits.why.tolist()} <= {"data"}


@given(waiting(), st.data())
def test_slack_is_what_a_task_may_take_longer(drawn: tuple[Waits, np.ndarray, np.ndarray], data: st.DataObject) -> None:
    waits, lasts, gaps = drawn
    ends = Waits(waits.source, waits.target, waits.why, None, waits.lag)
    order = FixedOrder.of_waits(len(lasts), ends)
    timed = Timed(ends, order.evaluate(lasts, gaps).start, lasts)
    slack = timed.slack(timed.end.max() - timed.end)
    task = data.draw(st.integers(0, len(lasts) - 1))
    for more, later in ((slack[task], 0.0), (slack[task] + 1, 1.0)):
        longer = lasts.copy()
        longer[task] += more
        assert order.evaluate(longer, gaps).end.max() == timed.end.max() + later


@given(waiting(), st.data())
def test_what_was_told_decides_and_the_last_in_time_where_nothing_was(
    drawn: tuple[Waits, np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    waits, lasts, gaps = drawn
    told = np.array(data.draw(st.lists(st.sampled_from([-1, MESSAGE, LANE, DATA]), min_size=len(lasts),
                                       max_size=len(lasts))))  # fmt: skip
    start = FixedOrder.of_waits(len(lasts), waits).evaluate(lasts, gaps).start
    timed, plain = Timed(waits, start, lasts, recorded_why=told), Timed(waits, start, lasts)
    for task, of_task in enumerate(let(waits, start, lasts)):
        fits = [edge for edge in of_task if edge[1] == told[task]] or of_task
        last = max((at for at, _, _ in fits), default=0.0)
        assert timed.released[task] == min(last, start[task])
        assert not of_task or timed.source[task] in [source for at, _, source in fits if at == last]
    assert timed.gap.tolist() == plain.gap.tolist(), "other durations keep the same gaps"
    assert timed.with_durations(lasts).start.tolist() == start.tolist()


@given(waiting(), st.data())
def test_time_along_a_chain_is_what_a_walk_over_it_adds_up(
    drawn: tuple[Waits, np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    waits, lasts, gaps = drawn
    told = np.array(data.draw(st.lists(st.integers(-1, len(WHY) - 1), min_size=len(lasts), max_size=len(lasts))))
    timed = Timed(waits, FixedOrder.of_waits(len(lasts), waits).evaluate(lasts, gaps).start, lasts, recorded_why=told)
    of_tasks, of_gaps = (np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(lasts), max_size=len(lasts))))
                         for _ in range(2))  # fmt: skip
    task = data.draw(st.integers(0, len(lasts) - 1))
    low = float(data.draw(st.integers(0, 40)))
    expected = np.zeros(4)
    until = timed.start[task]
    for each in timed.chain(task):
        begins, before = timed.start[each], int(timed.source[each])
        released = timed.released[each] if before >= 0 else -np.inf
        expected[of_gaps[each]] += max(min(until, begins) - max(low, released), 0.0)
        if before >= 0:
            expected[of_tasks[before]] += max(released - max(low, timed.start[before]), 0.0)
            until = min(until, timed.start[before])
    rows = np.array([task])
    found = Chains(timed, of_tasks, of_gaps, 4).between(rows, np.array([low]), timed.start[rows])
    assert found[0].tolist() == pytest.approx(expected.tolist(), abs=1e-9)
    assert found.sum() == pytest.approx(max(timed.start[task] - low, 0.0), abs=1e-9)
