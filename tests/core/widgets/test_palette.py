"""The palette can be told apart by everyone, read in both themes, and is the only place with colours."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import pathways_widgets
from pathways_nb.plan.memory_categories import CATEGORIES
from pathways_nb.trace.rows import CONTROLLER_KINDS, GAUGE_KINDS, KINDS
from pathways_widgets.drawing import palette
from pathways_widgets.timeline.lanes import CONTROLLER_ROWS
from tests.core.widgets.colour_science import ciede2000, contrast, least_distance, lightness, seen_distance


def test_distance_agrees_with_published_pairs() -> None:
    """Pairs 1, 7 and 16 of Sharma, Wu and Dalal's test data."""
    for one, other, distance in (
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 0, 0), (50, -1, 2), 2.3669),
        ((50, 2.5, 0), (50, 0, -2.5), 4.3065),
    ):
        assert ciede2000(np.array(one), np.array(other)) == pytest.approx(distance, abs=1e-4)


@pytest.mark.parametrize("group", [palette.DEVICE_KINDS, palette.CONTROLLER_KINDS])
def test_kinds_of_one_lane_can_be_told_apart(group: tuple[palette.EventStyle, ...]) -> None:
    for one, other in itertools.combinations(group, 2):
        assert least_distance(one.colour, other.colour) >= 10, (one, other)


def test_no_two_kinds_have_one_colour_and_no_client_has_that_of_a_kind() -> None:
    for one, other in itertools.combinations(palette.KINDS, 2):
        assert least_distance(one.colour, other.colour) >= 6, (one, other)
        assert seen_distance(one.colour, other.colour) >= 10, (one, other)
    for kind, client in itertools.product(palette.KINDS, palette.CLIENTS):
        assert least_distance(kind.colour, client) >= 8, (kind, client)
        assert seen_distance(kind.colour, client) >= 12, (kind, client)


DEVICE_LANE = [kind for kind in palette.DEVICE_KINDS if kind.name != "transfer"]
WAITING = [kind for kind in palette.CONTROLLER_KINDS if kind.name in CONTROLLER_ROWS]
WORKING = [kind for kind in palette.CONTROLLER_KINDS if kind.name not in CONTROLLER_ROWS]


@pytest.mark.parametrize("lane", [DEVICE_LANE, WAITING, WORKING])
def test_kinds_of_one_row_can_be_told_apart_in_grey(lane: list[palette.EventStyle]) -> None:
    for one, other in itertools.combinations(lane, 2):
        apart = abs(lightness(one.colour) - lightness(other.colour))
        assert apart >= 10 or one.pattern != other.pattern, (one, other, apart)


SHADES = {kind.letter: [palette.shade(code, part) for part in (0.0, 0.25, 0.5, 0.75, 1.0)]
          for code, kind in enumerate(palette.OPERATIONS)}  # fmt: skip


def test_operations_of_a_schedule_can_be_told_apart_in_all_their_shades() -> None:
    for one, other in itertools.combinations(SHADES, 2):
        assert least_distance(SHADES[one][0], SHADES[other][0]) >= 12, (one, other)
        for a, b in itertools.product(SHADES[one], SHADES[other]):
            assert least_distance(a, b) >= 10, (one, other, a, b)


def test_the_first_and_last_shade_of_an_operation_can_be_told_apart() -> None:
    for letter, shades in SHADES.items():
        assert least_distance(shades[0], shades[-1]) >= 10, letter
        assert all(lightness(a) < lightness(b) for a, b in itertools.pairwise(shades)), letter


def test_operations_have_letters_that_can_be_read_on_all_their_shades() -> None:
    assert "".join(kind.letter for kind in palette.OPERATIONS) == "FIWB"
    assert min(contrast(palette.INK, colour) for shades in SHADES.values() for colour in shades) >= 4.5


@pytest.mark.parametrize("theme", palette.THEMES.values())
def test_memory_of_a_device_stands_out_and_what_is_above_its_cap_from_it(theme: dict[str, str]) -> None:
    assert least_distance(palette.MEMORY, palette.EXCESS) >= 10
    assert min(contrast(colour, theme["background"]) for colour in (palette.MEMORY, palette.EXCESS)) >= 2.5


def test_places_can_be_told_apart() -> None:
    for one, other in itertools.combinations(palette.PLACES, 2):
        assert least_distance(one, other) >= 10, (one, other)


def test_clients_can_be_told_apart() -> None:
    assert len(set(palette.CLIENTS)) == len(palette.CLIENTS)
    for one, other in itertools.combinations(palette.CLIENTS, 2):
        assert least_distance(one, other) >= 10, (one, other)
    assert palette.client_colour(7) == palette.client_colour(0)


def test_categories_of_memory_have_a_colour_each_in_the_order_of_the_stack() -> None:
    assert tuple(palette.CATEGORIES) == CATEGORIES
    for one, other in itertools.combinations(palette.CATEGORIES.values(), 2):
        assert least_distance(one, other) >= 10, (one, other)


@pytest.mark.parametrize("theme", palette.THEMES.values())
def test_clients_stand_out_from_the_ground_the_first_most(theme: dict[str, str]) -> None:
    assert min(contrast(palette.client_colour(i), theme["background"]) for i in range(2)) >= 3.0
    assert min(contrast(colour, theme["background"]) for colour in palette.CLIENTS) >= 1.9


def test_every_kind_of_event_has_a_letter_and_a_colour() -> None:
    assert {kind.name for kind in palette.KINDS} == {*KINDS, "backward"} - GAUGE_KINDS, "a level is no box"
    assert {kind.name for kind in palette.CONTROLLER_KINDS} == CONTROLLER_KINDS
    letters = [kind.letter for kind in palette.KINDS]
    assert len(set(letters)) == len(letters)


def test_text_on_boxes_can_be_read() -> None:
    boxes = [kind.colour for kind in palette.KINDS] + [palette.pale(colour) for colour in palette.PLACES]
    assert min(contrast(palette.INK, box) for box in [*boxes, palette.pale(palette.NEUTRAL)]) >= 4.5


@pytest.mark.parametrize("theme", palette.THEMES.values())
def test_text_in_themes_can_be_read(theme: dict[str, str]) -> None:
    assert contrast(theme["text"], theme["background"]) >= 4.5
    assert contrast(theme["soft"], theme["background"]) >= 4.5
    assert contrast(theme["island"], theme["background"]) >= 3.0


def test_backward_is_told_by_name() -> None:
    assert palette.KINDS[palette.code_of("compute", "stage0 (bwd)")].letter == "B"
    assert palette.KINDS[palette.code_of("compute", "stage0")].letter == "F"
    assert palette.KINDS[palette.code_of("transfer", "gradient (bwd)")].letter == "T"
    letters = [
        palette.KINDS[palette.code_of("compute", name)].letter for name in ("12F3", "2B0", "2I0.1", "2W0", "2x0")
    ]
    assert letters == ["F", "B", "B", "B", "F"]


def test_no_colour_is_written_outside_the_palette() -> None:
    for path in Path(pathways_widgets.__file__).parent.iterdir():
        if path.suffix in (".py", ".js") and path.name != "palette.py":
            assert not re.search(r"#[0-9a-fA-F]{6}\b|rgba?\(", path.read_text("utf-8")), path
