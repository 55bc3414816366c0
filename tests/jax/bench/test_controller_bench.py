"""A program is the same to the controller on 2 devices and on 65,536: equal graphs, plans, needs and instructions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pathways_nb.bench.controller import Story
from pathways_nb.controller.events_and_instructions import Finish, Free, Launch, MemoryHeld
from pathways_nb.controller.invariants import check_invariants

LARGE = (2048, 65_536)


@pytest.fixture(scope="module", params=["parallel", "sequential"])
def stories(request: pytest.FixtureRequest) -> dict[int, Story]:
    return {shards: Story(shards, request.param) for shards in (2, *LARGE)}


def shape(story: Story) -> list[Any]:
    """All that a plan says but which slices and how many devices they have."""
    places = [place.serial for place in story.graph.places]
    return [replace(step, place=places.index(step.place)) for step in story.plan.steps]


@pytest.mark.parametrize("shards", LARGE)
def test_graph_plan_and_needs_do_not_grow_with_the_shards(stories: dict[int, Story], shards: int) -> None:
    small, large = stories[2], stories[shards]
    assert [(n.kind, n.name, n.inputs, n.outputs) for n in large.graph.nodes] == [
        (n.kind, n.name, n.inputs, n.outputs) for n in small.graph.nodes
    ]
    assert len([*large.graph.edges()]) == len([*small.graph.edges()])
    assert shape(large) == shape(small)
    assert {place.count for place in large.plan.placements.values()} == {shards}
    peaks = [[replace(course, count=0) for course in story.footprint.profiles[0]] for story in (small, large)]
    assert peaks[0] == peaks[1]
    assert len(peaks[0]) == 1


def test_the_controller_says_the_same_whatever_the_number_of_shards(stories: dict[int, Story]) -> None:
    for _ in range(3):
        told: dict[int, list[Any]] = {}
        for shards, story in stories.items():
            said = story.tell()
            assert {i.count for i in said if isinstance(i, MemoryHeld)} == {shards}
            told[shards] = [replace(i, count=0) if isinstance(i, MemoryHeld) else i for i in said]
            check_invariants(story.machine)
            assert not story.machine.calls
        assert told[2] == told[2048] == told[65_536]
        assert {Launch, Finish, Free, MemoryHeld} <= {type(i) for i in told[2]}
    assert len({story.messages for story in stories.values()}) == 1
