"""Levels of memory as events: all categories of one change at one time, and no event for what did not change."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from pathways_nb.controller.held_memory import DeviceMemory
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime.memory_events import MemoryEvents
from pathways_nb.trace.rows import Row

WHERE = Placement(0, 0, 4)


class Levels:
    """A ledger whose changes become rows; each look at the clock takes a second."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.memory = DeviceMemory((4,))
        seconds: Iterator[float] = map(float, count())
        self.events = MemoryEvents(lambda: next(seconds), self.rows.append)

    def change(self, where: Placement, **parts: int) -> None:
        """Change what the client holds by these bytes."""
        self.memory.add(where, "ann", parts)
        for level in self.memory.changes():
            assert level.bytes == sum(size for _, size in level.parts)
            self.events.change(level)

    def told(self) -> list[tuple[str, int, float, float]]:
        return [(row.label.category, row.label.bytes, row.start, row.end) for row in self.rows]


def test_all_categories_change_at_one_time() -> None:
    levels = Levels()
    levels.change(WHERE, intermediates=5, temporaries=3)
    levels.change(WHERE, intermediates=-5, temporaries=-3, results=4)
    levels.change(WHERE, results=-4)
    assert levels.told() == [("intermediates", 5, 0.0, 1.0), ("temporaries", 3, 0.0, 1.0), ("results", 4, 1.0, 2.0)]


def test_a_category_that_stays_is_one_event() -> None:
    levels = Levels()
    levels.change(WHERE, parameters=7)
    levels.change(WHERE, temporaries=3)
    levels.change(WHERE, temporaries=-3)
    levels.change(WHERE, parameters=-7)
    assert levels.told() == [("temporaries", 3, 1.0, 2.0), ("parameters", 7, 0.0, 3.0)]


def test_bytes_that_change_their_category_are_told_though_their_sum_is_the_same() -> None:
    levels = Levels()
    levels.change(WHERE, intermediates=4)
    freed = levels.memory.freed
    levels.change(WHERE, intermediates=-4, results=4)
    assert levels.memory.freed == freed, "nothing was given back"
    levels.events.mark()
    assert levels.told() == [("intermediates", 4, 0.0, 1.0), ("results", 4, 1.0, 2.0)]


def test_a_range_that_is_cut_keeps_its_categories_on_both_sides() -> None:
    levels = Levels()
    levels.change(WHERE, parameters=7)
    levels.change(Placement(0, 0, 2), temporaries=3)
    levels.events.mark()
    held = {(row.label.device, row.label.devices, row.label.category): row.label.bytes for row in levels.rows}
    assert held == {(0, 4, "parameters"): 7, (0, 2, "parameters"): 7, (0, 2, "temporaries"): 3, (2, 2, "parameters"): 7}
