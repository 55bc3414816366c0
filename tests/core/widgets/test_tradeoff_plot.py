"""Two costs of several things: the best of them, the stairs, and names that cover nothing."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from pathways_widgets import tradeoff
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.plane import Axes
from pathways_widgets.explorers.tradeoff import front, labels_of, stairs

POINTS = {
    "a": (1.0, 4.0),
    "b": (2.0, 2.0),
    "b again": (2.0, 2.0),
    "worse": (3.0, 2.0),
    "c": (4.0, 1.0),
    "far": (5.0, 5.0),
}
AXES = Axes("x", "y", (0.0, 6.0), (0.0, 6.0), {}, 360.0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1))
def test_the_front_is_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    beaten = {p for p in points if any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)}
    assert front(points) == sorted(set(points) - beaten)


def test_the_stairs_pass_the_best_from_the_top_to_the_right() -> None:
    assert stairs([(1, 4), (2, 2)], AXES) == [(1, 6), (1, 4), (2, 4), (2, 2), (6, 2)]


def test_names_of_one_place_stand_together_and_none_covers_its_neighbour() -> None:
    labels = {one.name: one for one in labels_of(POINTS, AXES)}
    assert list(labels) == ["far", "c", "worse", "b, b again", "a"]
    assert labels["far"].align == "start"
    assert labels["far"].down == 0
    assert labels["a"].align == "end", "on the right are the stairs"
    close = labels_of({"one": (5.0, 5.0), "two": (5.1, 5.0), "best": (0.0, 0.0)}, AXES)
    assert [(one.name, one.align) for one in close[:2]] == [("two", "start"), ("one", "end")]


def test_it_says_which_are_best_and_has_a_still_picture() -> None:
    figure = tradeoff(POINTS, x="memory", y="bubble")
    assert repr(figure) == "best: a (1, 4); b, b again (2, 2); c (4, 1)"
    assert figure._still is not None
    svg = figure._still().svg()
    assert all(f">{word}</text>" in svg for word in ("b, b again", "worse", "bubble over memory"))
    assert len(re.findall(rf'<rect[^>]*fill="{palette.VERMILION}"', svg)) == 3
    assert len(re.findall(rf'<rect[^>]*fill="{palette.SKY}"', svg)) == 2


def test_points_at_zero_have_axes() -> None:
    assert repr(tradeoff({"free": (0.0, 0.0)}, x="a", y="b")) == "best: free (0, 0)"
