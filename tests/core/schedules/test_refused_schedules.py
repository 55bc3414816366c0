"""A schedule that repeats or lacks work is refused by the first action that is wrong, however long it is."""

from __future__ import annotations

import random
import sys
from collections import Counter
from itertools import product
from typing import Any

import pytest

import pathways_nb as pw
from pathways_nb.parallel.schedules.actions import actions_of
from pathways_nb.parallel.schedules.schedule import Schedule


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_check_makes_no_call_for_each_action(is_missing: bool) -> None:
    """Which took 8 s for 300,000 actions."""
    rows = [list(row) for row in pw.schedule("zb-h1", 4, 1000).rows]
    assert sum(map(len, rows)) == 12_000
    rows[3] = rows[3][:-1] if is_missing else [*rows[3], rows[3][-1]]
    schedule, calls = Schedule(tuple(map(tuple, rows))), Counter[str]()

    def counted(frame: Any, event: str, arg: Any) -> None:
        calls[event] += 1

    sys.setprofile(counted)
    try:
        with pytest.raises(pw.ScheduleError, match="3W999 is"):
            schedule.check()
    finally:
        sys.setprofile(None)
    assert calls["call"] < 1_000, calls


def first_wrong(schedule: Schedule) -> str | None:
    """Say which part of the work is repeated or missing first, from the definitions."""
    done = [
        (action.direction, action.microbatch, action.token_slice or 0, action.stage, part)
        for row in schedule.rows for cell in row for action in actions_of(cell)
        for part in ("IW" if action.operation == "B" else action.operation)
    ]  # fmt: skip
    many, sliced = Counter(done), any(one[2] for one in done)
    wrong = next((one for one in done if many[one] > 1), None)
    slices, stages = (1 + max(one[at] for one in done) for at in (2, 3))
    if wrong is None:
        counts = {letter: 1 + max(one[1] for one in done if one[0] == letter) for letter in sorted({one[0] for one in done})}  # fmt: skip
        wanted = ((d, m, k, s, p) for d, count in counts.items() for m, k, s, p in product(range(count), range(slices), range(stages), "FIW"))  # fmt: skip
        wrong = next((one for one in wanted if one not in many), None)
    if wrong is None:
        return None
    direction, microbatch, part, stage, operation = wrong
    said = f"done {many[wrong]} times" if many[wrong] else "missing"
    return f"{direction}{stage}{operation}{microbatch}{f'.{part}' if sliced else ''} is {said}"


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe", "terapipe"])
def test_the_first_repeated_else_the_first_missing_part_is_named(name: str) -> None:
    draw = random.Random(name)
    rows = pw.schedule(name, 2, 4).rows
    for _ in range(60):
        changed = [list(row) for row in rows]
        for _ in range(draw.choice([1, 1, 2])):
            row, other = draw.choice(changed), draw.choice(changed)
            cell = row.pop(draw.randrange(len(row)))
            other[:] = draw.choice([other, [*other, cell], [cell, *other, cell]])
        schedule = Schedule(tuple(map(tuple, changed)))
        expected = first_wrong(schedule)
        try:
            schedule.check()
        except pw.ScheduleError as error:
            said = str(error)
        else:
            said = "sound"
        assert said.startswith(expected) if expected else " is done " not in said and " is missing" not in said


def test_numbers_whose_combinations_exceed_64_bits_are_told_apart() -> None:
    most = 10**18 - 1
    text = f"{most}F{most}.{most} {most}B{most}.{most} 0F0.0 0B0.0"
    with pytest.raises(pw.ScheduleError, match=r"^0F0.1 is missing|^1F0.0 is missing"):
        Schedule.parse(text).check()
    with pytest.raises(pw.ScheduleError, match=rf"^{most}F{most}.{most} is done 2 times .*: device 0, action 1; device 0, action 5."):  # fmt: skip
        Schedule.parse(f"{text} {most}F{most}.{most}").check()
