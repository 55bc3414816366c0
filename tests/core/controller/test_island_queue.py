"""What is enqueued on an island: its work, and how fast it ends."""

from __future__ import annotations

import pytest

from pathways_nb.controller.state import IslandQueue


def test_pace_is_the_time_between_ends_of_a_queue_that_is_never_empty() -> None:
    queue = IslandQueue()
    for call in range(100):
        queue.add(call, 1, 1e-5, True)
    for call in range(99):
        queue.remove(call, 1, 5.0 + 2e-3 * call)
    assert queue.pace == pytest.approx(2e-3, rel=1e-3)
    queue.remove(99, 1, 5.2)
    before = queue.pace
    queue.add(100, 1, 1e-5, True)
    queue.add(101, 1, 1e-5, True)
    queue.remove(100, 1, 60.0)  # it was idle before: its latency is no pace
    assert queue.pace == before
    assert queue.work == pytest.approx(1e-5)
