"""Loops of timed tasks: the same times as all their passes one after another, from a few of them."""

from __future__ import annotations

import numpy as np
import pytest

from pathways_nb.errors import UsageError
from pathways_nb.timing.fixed_order import FixedOrder
from pathways_nb.timing.loops import Body, Loop
from pathways_nb.timing.waits import DATA, MESSAGE, Waits

NONE = Waits.of([], [], [])
ONE = Body(np.ones(1), [(0,)], NONE)


def random_body(chance: np.random.Generator, depth: int = 0) -> Body:
    """Tasks on a few lanes with random edges, whole seconds, and loops among them."""
    count, lanes = int(chance.integers(1, 7)), int(chance.integers(1, 4))
    pairs = [(a, b) for b in range(count) for a in range(b) if chance.random() < 0.3]
    back = [(a, b) for a in range(count) for b in range(count) if chance.random() < 0.15]
    loops = {task: Loop(random_body(chance, depth + 1), int(chance.integers(0, 9)))
             for task in range(count) if depth < 1 and chance.random() < 0.2}  # fmt: skip
    return Body(
        chance.integers(0, 9, count).astype(float),
        [tuple(chance.choice(lanes, int(chance.integers(1, lanes + 1)), replace=False).tolist()) for _ in range(count)],
        waits(pairs, chance), waits(back, chance), loops,
    )  # fmt: skip


def waits(pairs: list[tuple[int, int]], chance: np.random.Generator) -> Waits:
    source, target = np.array(pairs, int).reshape(-1, 2).T
    part = chance.choice([0.0, 0.5, 1.0], len(pairs))
    return Waits.of(source, target, chance.choice([DATA, MESSAGE], len(pairs)), part, chance.integers(0, 3, len(pairs)))


def unrolled(body: Body, trips: int) -> np.ndarray:
    """The starts of all passes, from one fixed order of all their tasks."""
    count = len(body.durations)
    lasts = body.durations.copy()
    for task, loop in body.loops.items():
        inner = unrolled(loop.body, loop.trips)
        lasts[task] = (inner + durations(loop.body)).max(initial=0.0) if loop.trips else 0.0
    columns = [[], [], [], []]  # type: ignore[var-annotated]

    def add(source, target, part=1.0, lag=0.0):
        for column, value in zip(columns, (source, target, part, lag), strict=True):
            column.append(value)

    last = dict[int, int]()
    for number in range(trips):
        for shift, edges in ((0, body.waits), (1, body.carried)):
            if number >= shift:
                for source, target, part, lag in zip(edges.source, edges.target, edges.part, edges.lag, strict=True):
                    add((number - shift) * count + source, number * count + target, part, lag)
        for task, lanes in enumerate(body.lanes):
            for lane in lanes:
                if lane in last:
                    add(last[lane], number * count + task)
                last[lane] = number * count + task
    edges = Waits.of(columns[0], columns[1], np.zeros(len(columns[0])), columns[2], columns[3])
    found = FixedOrder.of_waits(trips * count, edges).evaluate(np.tile(lasts, trips)).start
    return found.reshape(trips, count)


def durations(body: Body) -> np.ndarray:
    found = body.durations.copy()
    for task, loop in body.loops.items():
        found[task] = (unrolled(loop.body, loop.trips) + durations(loop.body)).max(initial=0.0) if loop.trips else 0.0
    return found


@pytest.mark.parametrize("seed", range(150))
def test_a_loop_takes_as_long_as_all_its_passes(seed) -> None:
    chance = np.random.default_rng(seed)
    body, trips = random_body(chance), int(chance.integers(0, 60))
    loop = Loop(body, trips)
    expected = unrolled(body, trips)
    for number in range(trips):
        assert np.array_equal(loop.starts(number), expected[number]), "whole ticks stay exact"
    assert loop.seconds == ((expected + durations(body)).max(initial=0.0) if trips else 0.0)
    assert Loop(body, 10_000).evaluated < 12


def test_a_million_passes_are_known_from_a_few() -> None:
    """Compute of 3 s, gathered one pass ahead in 2 s, reduced in 4 s: reductions hold up nothing but the end."""
    data = Waits.of([1, 0], [2, 1], DATA)
    loop = Loop(Body(np.array([2.0, 3.0, 4.0]), [(1,), (0,), (2,)], data), 1_000_000)
    assert loop.evaluated < 10
    assert loop.starts(999_999).tolist() == [2.0 * 999_999, 2.0 + 3.0 * 999_999, 5.0 + 4.0 * 999_999]
    assert loop.seconds == 9.0 + 4.0 * 999_999
    assert [loop.why(999_999, task) for task in range(3)] == ["lane", "lane", "lane"]
    assert [loop.why(0, task) for task in range(3)] == ["", "data", "data"]


def test_lanes_that_take_turns_repeat_after_several_passes() -> None:
    """Two circles over two passes: the order of the passes decides, so that every second pass is alike."""
    carried = Waits.of([0, 1], [1, 0], DATA, 1.0, [0.0, 1.0])
    loop = Loop(Body(np.array([5.0, 2.0]), [(0,), (1,)], Waits.of([], [], []), carried), 1000)
    assert loop.evaluated < 20
    assert np.array_equal(loop.starts(777), unrolled(loop.body, 1000)[777])


def test_a_late_task_does_not_hide_that_others_still_drift() -> None:
    """What takes a little more each pass overtakes in the end, however late another task is."""
    waits = Waits.of([1, 0, 0], [2, 2, 3], DATA, 1.0, [0.0, 1.00001e-3, 150.0])
    body = Body(np.array([0.0, 1e-3 + 1e-10, 1e-3, 0.0]), [(0,), (1,), (2,), (3,)], waits)
    expected, trips = unrolled(body, 3000), 3000
    assert Loop(body, trips).seconds == pytest.approx((expected + durations(body)).max(), rel=1e-12)
    assert Loop(body, trips).starts(trips - 1)[:3] == pytest.approx(expected[-1][:3], rel=1e-12)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Body(np.ones(2), [(0,)], Waits.of([], [], [])), "a body of 2 tasks has lanes for 1; give each task"),
        (lambda: Body(np.ones(1), [()], Waits.of([], [], [])), "task 0 is on no lane; give it one of its own"),
        (lambda: Body(np.ones(1), [(0,)], Waits.of([0], [3], [0])), "waits speak of task 3, but there are 1 tasks"),
        (
            lambda: Body(np.ones(2), [(0,), (0,)], Waits.of([1], [0], [0])),
            "task 0 waits for task 1, which does not stand",
        ),
        (lambda: Loop(Body(np.ones(1), [(0,)], Waits.of([], [], [])), -1), "a loop of -1 passes; give a whole number"),
        (
            lambda: Loop(Body(np.ones(1), [(0,)], Waits.of([], [], [])), 2.5),
            "a loop of 2.5 passes; give a whole number",
        ),
        (
            lambda: Body(np.array([-1.0]), [(0,)], Waits.of([], [], [])),
            "task 0 takes -1.0 s; give seconds of 0 or more",
        ),
        (lambda: Body(np.array([np.inf]), [(0,)], Waits.of([], [], [])), "task 0 takes inf s; give seconds"),
        (lambda: Body(np.ones(1), [(0, 0)], Waits.of([], [], [])), r"task 0 is on lanes \[0, 0\], one of them twice"),
        (lambda: Body(np.ones(2), [(0,), (1,)], Waits.of([-1], [1], [0])), "waits speak of task -1, but there are 2"),
        (
            lambda: Body(np.ones(1), [(0,)], NONE, NONE, {2: Loop(ONE, 1)}),
            "loops speak of task 2, but there are 1 tasks",
        ),
        (lambda: Loop(ONE, 3).starts(1.5), "pass 1.5 of a loop of 3 passes"),
        (lambda: Loop(ONE, 3).why(0, 9), "task 9 of a body of 1 tasks, which count from 0"),
        (lambda: Loop(Body(np.ones(1), [(0,)], Waits.of([], [], [])), 3).starts(3), "pass 3 of a loop of 3 passes"),
    ],
)
def test_what_no_loop_has_is_refused(make, text) -> None:
    with pytest.raises(UsageError, match=text):
        make()
