"""Pictures of schedules without a browser: what is drawn is what was timed, and all of it is explained."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.parallel.schedules.actions import Action, actions_of
from pathways_nb.parallel.schedules.picture import SchedulePicture
from pathways_widgets.drawing import palette, style
from pathways_widgets.schedules.schedule_columns import COLOURS, LEVELS, CellPointer
from pathways_widgets.schedules.schedule_display import ScheduleFigure
from pathways_widgets.schedules.schedule_view import Schedules
from tests.core.widgets.unpacking import unpack

NAMES = ("gpipe", "interleaved-1f1b", "zb-v", "dualpipe", "seq1f1b")
TIMES = {"F": 1.0, "I": 1.5, "W": 0.5, "transfer": 0.25}


def picture(
    name: str, devices: int = 4, microbatches: int = 8, cap: float | None = None, **times: float
) -> SchedulePicture:
    return SchedulePicture.of(pw.schedule(name, devices, microbatches), cap, **times)


def drawn(*pictures: SchedulePicture, **options: float) -> Schedules:
    view = Schedules(len(pictures), **options)
    view.update(pictures)
    return view


@pytest.mark.parametrize("name", NAMES)
def test_boxes_are_where_and_when_the_timing_says(name: str) -> None:
    one = picture(name, **TIMES)
    view, timing = drawn(one), one.timing
    boxes, board = view.sources["schedules_boxes"], view.layout.boards[0]
    cell = one.boxes["cell"]
    for row, number in enumerate(cell.tolist()):
        assert boxes["top"][row] == pytest.approx(board.rows + timing.tasks.owner[number] * board.unit)
        assert boxes["bottom"][row] - boxes["top"][row] == pytest.approx(board.lane, rel=1e-5)
    for number in range(len(timing.start)):
        mine = cell == number
        span = boxes["left"][mine].min(), boxes["right"][mine].max()
        assert span == pytest.approx((timing.start[number], timing.end[number]))
        assert np.sum((boxes["right"] - boxes["left"])[mine]) == pytest.approx(
            timing.end[number] - timing.start[number], abs=1e-5
        )
    names = ["FIWB"[code] for code in boxes["operation"]]
    assert names == [action.operation for action in actions(one)]
    assert boxes["microbatch"].tolist() == [action.microbatch for action in actions(one)]


def actions(one: SchedulePicture) -> list[Action]:
    return [action for cell in one.timing.tasks.cells for action in actions_of(cell)]


def test_numbers_of_microbatches_are_on_all_boxes_of_a_width_or_on_none() -> None:
    """Labels that stop at 9 would look as if no more microbatches followed."""
    one = picture("gpipe", 4, 16)
    for pixels in (400.0, 600.0, 800.0, 1000.0, 1500.0, 4000.0):
        texts = drawn(one, pixels=pixels).sources["schedules_marks"]["text"]
        told = {int("".join(filter(str.isdigit, text))) for text in texts if text}
        assert told in (set(), set(range(16))), pixels
    assert told, "there is room at last"


def test_a_peak_has_three_digits() -> None:
    view = drawn(picture("zb-v", 3, 7, cap=2.5))
    for text in view.sources["schedules_labels"]["peak"]:
        assert len(text.removeprefix("peak ").split(" > ")[0].replace(".", "")) <= 3, text


def test_a_pair_is_one_border_around_two_tones_that_share_its_time_as_their_work() -> None:
    one = picture("dualpipe", **TIMES)
    view = drawn(one)
    boxes, pairs = view.sources["schedules_boxes"], view.sources["schedules_pairs"]
    first = np.flatnonzero((boxes["pair"] >= 0) & (boxes["operation"] == 0))
    assert len(first) == len(pairs["left"]) > 0
    second = boxes["pair"][first]
    assert boxes["right"][first].tolist() == boxes["left"][second].tolist()
    assert (boxes["right"] - boxes["left"])[first] == pytest.approx(np.full(len(first), 1.0), rel=1e-4)
    assert (boxes["right"] - boxes["left"])[second] == pytest.approx(np.full(len(first), 2.0), rel=1e-4)
    assert pairs["left"].tolist() == boxes["left"][first].tolist()
    assert pairs["right"].tolist() == boxes["right"][second].tolist()
    edges = view.sources["schedules_edges"]
    assert len(edges["left"]) == np.count_nonzero(boxes["pair"] < 0), "the halves have no border of their own"


@pytest.mark.parametrize("name", NAMES)
def test_every_box_is_filled_once_and_the_hatched_ground_that_is_left_is_the_idle_time(name: str) -> None:
    one = picture(name, **TIMES)
    sources = drawn(one).sources
    fills = [sources[f"schedules_fill{code}"] for code in range(len(COLOURS))]
    assert [len(fill["left"]) for fill in fills] == np.bincount(
        sources["schedules_boxes"]["code"], minlength=20
    ).tolist()
    ground = sources["schedules_idle"]
    for device in range(4):
        filled = sum(np.sum((f["right"] - f["left"])[np.isclose(f["top"], ground["top"][device])]) for f in fills)
        left = ground["right"][device] - ground["left"][device] - filled
        assert left == pytest.approx(one.timing.idle.total[device], abs=1e-4)


def test_hue_is_the_operation_and_lightness_what_a_device_tells_apart() -> None:
    for name, shades in (("gpipe", 1), ("interleaved-1f1b", 2), ("dualpipe", 2), ("seq1f1b", 4)):
        one = picture(name)
        boxes = drawn(one).sources["schedules_boxes"]
        assert (boxes["code"] // LEVELS == boxes["operation"]).all()
        forward = boxes["code"][boxes["operation"] == 0]
        assert len(set(forward.tolist())) == shades, name
        assert forward.min() == 0


def test_the_first_stage_on_a_device_is_darkest() -> None:
    boxes = drawn(picture("interleaved-1f1b")).sources["schedules_boxes"]
    assert ((boxes["stage"] < 4) == (boxes["code"] % LEVELS == 0)).all()


def test_what_has_room_is_written_more_when_there_is_more() -> None:
    wide, narrow = (drawn(picture("1f1b"), pixels=pixels).sources["schedules_marks"] for pixels in (900, 330))
    assert sorted(wide["text"]) == sorted(f"{kind}{m}" for kind in "FB" for m in range(8) for _ in range(4))
    assert {text for text in narrow["text"] if text} >= {"0", "B0"}
    sliced = drawn(picture("seq1f1b"), pixels=6000).sources["schedules_marks"]["text"]
    assert {"F0.0", "B7.3"} <= set(sliced)
    for view in (drawn(picture("zb-v")), drawn(picture("gpipe", 16, 128))):
        boxes, marks = view.sources["schedules_boxes"], view.sources["schedules_marks"]
        pixel = view.extent / 760
        for x, y, text in zip(marks["x"], marks["y"], marks["text"], strict=True):
            inside = (boxes["left"] < x) & (x < boxes["right"]) & (boxes["top"] < y) & (y < boxes["bottom"])
            assert np.count_nonzero(inside) == 1
            assert 0.5 * len(text) * view.style.font * pixel <= (boxes["right"] - boxes["left"])[inside][0]


def test_a_closer_look_writes_on_boxes_that_had_no_room() -> None:
    view = drawn(picture("gpipe", 16, 128))
    boxes = {name: column.copy() for name, column in view.sources["schedules_boxes"].items()}
    assert not any(view.sources["schedules_marks"]["text"])
    found = view.zoom((0.0, 10.0))
    assert {"F0", "F1"} <= set(found["schedules_marks"]["text"])
    assert len(found["schedules_edges"]["left"]) > 0
    assert all((view.sources["schedules_boxes"][name] == column).all() for name, column in boxes.items())


@pytest.mark.parametrize("name", NAMES)
def test_the_area_of_memory_is_its_integral(name: str) -> None:
    one = picture(name, **TIMES)
    view = drawn(one)
    board, held = view.layout.boards[0], view.sources["schedules_held"]
    gaps = np.flatnonzero(np.isnan(held["x"]))
    starts = [0, *(gaps[:-1] + 1)]
    for device, (begin, end) in enumerate(zip(starts, gaps, strict=True)):
        x, y = (held[name][begin:end].astype(float) for name in "xy")
        area = abs(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1))) / 2 * board.most / board.strip
        times, levels = one.timing.memory(device)
        assert area == pytest.approx(np.sum(np.diff([*times, one.makespan]) * levels), rel=1e-3)
    peaks = view.sources["schedules_peaks"]["y"]
    assert (board.level(0, 0.0) + np.arange(4) * board.unit - peaks) / board.strip * board.most == pytest.approx(
        one.peaks
    )


def test_a_cap_is_a_line_and_what_is_above_it_is_marked() -> None:
    above, below = picture("gpipe", cap=5), picture("1f1b", cap=5)
    view = drawn(above, below)
    caps, over = view.sources["schedules_caps"], view.sources["schedules_over"]
    assert len(caps["y"]) == 8
    highest = [np.nanmin(over["y"][np.nan_to_num(over["y"]) < view.layout.boards[0].bottom]), caps["y"][0]]
    assert highest[0] < highest[1], "some of it is above the line"
    second = over["y"][over["y"] > view.layout.boards[1].rows]
    assert set(np.round(second, 3)) == set(np.round(caps["y"][4:], 3).astype(np.float32)), (
        "nothing above the line below"
    )
    assert view.sources["schedules_labels"]["peak"] == (*["8 > 5"] * 4, *(f"peak {n}" for n in (4, 3, 2, 1)))
    assert "exceeds the cap of 5 on 4 of 4 devices" in above.words
    assert "within the cap of 5" in below.words
    assert view.properties["schedules_key_cap"]["visible"]
    assert len(drawn(picture("gpipe")).sources["schedules_caps"]["y"]) == 0


def test_the_legend_names_what_is_there_and_nothing_else() -> None:
    def visible(*names: str) -> dict[str, bool]:
        properties = drawn(*map(picture, names)).properties
        return {name[13:]: values["visible"] for name, values in properties.items() if name.startswith("schedules_key")}

    codes = {"0": True, "1": False, "2": False, "3": True}
    rest = ("_shade", "_cap", "_order", "_late")
    assert visible("gpipe", "1f1b") == codes | dict.fromkeys(rest, False)
    assert visible("zb-v")["1"]
    shade = drawn(picture("dualpipe"), picture("seq1f1b")).properties["schedules_key_shade"]["label"]["value"]
    assert shade == "paler: other direction, later token slice"


def test_two_schedules_have_one_axis_and_one_scale_of_memory() -> None:
    view = drawn(picture("gpipe"), picture("zb-v"))
    assert view.properties["timeline_x"]["end"] == pytest.approx(1.005 * 33)
    above, below = view.layout.boards
    assert above.bottom < below.top
    assert (above.unit, above.most) == (below.unit, below.most) == (above.unit, 8.0)
    ground = view.sources["schedules_idle"]
    assert ground["right"].tolist() == [33.0] * 4 + [25.5] * 4, "a shorter one ends sooner"


def test_a_refused_size_is_words_in_its_place() -> None:
    refused = SchedulePicture("dualpipe", error="schedule 'dualpipe': devices=3 is odd. " * 6)
    view = drawn(refused, picture("1f1b", 3, 8))
    lines = view.properties["schedules_words0"]["text"].split("\n")
    assert len(lines) > 1
    assert " ".join(lines).split() == refused.error.split()
    assert view.layout.boards[0].rows <= view.layout.boards[1].top
    assert len(view.sources["schedules_idle"]["top"]) == 3
    assert len(drawn(refused).sources["schedules_boxes"]["left"]) == 0


def test_a_step_marks_a_cell_and_what_released_it_and_veils_the_rest() -> None:
    above, below = picture("gpipe"), picture("1f1b")
    view = drawn(above, below)
    cell = below.timing.tasks.cells.index(actions(below)[9])
    view.point(CellPointer(1, cell))
    now, later, wire = (view.sources[f"schedules_{name}"] for name in ("now", "later", "wire"))
    source = int(below.timing.released.source[cell])
    assert now["left"].tolist() == [below.timing.start[cell], below.timing.start[source]]
    assert later["left"].tolist() == [below.timing.end[cell]] * 2
    assert wire["x0"].tolist() == [below.timing.end[source]]
    view.point(CellPointer(0, 0))
    assert len(view.sources["schedules_now"]["left"]) == 1, "nothing to wait for"
    view.point(None)
    assert not any(len(view.sources[f"schedules_{name}"][key]) for name, key in (("now", "left"), ("later", "left")))


@pytest.mark.parametrize("name", ["screen", "projector", "paper"])
@pytest.mark.parametrize("devices", [2, 4, 16, 64])
def test_names_of_devices_have_room(name: str, devices: int) -> None:
    style.choose(name)
    try:
        view = drawn(picture("1f1b", devices, 8))
        gaps = [b - a for a, b in pairwise(view.sources["schedules_labels"]["y"])]
        assert min(gaps) >= view.style.font
        assert view.layout.boards[0].lane >= 2
    finally:
        style.choose("screen")


def test_named_models_exist_for_properties_and_themes_and_every_column_is_sent() -> None:
    figure = ScheduleFigure([picture("gpipe"), picture("zb-v", cap=3)])
    view = figure.drawing
    named = {model.name: model for model in view.root.references() if model.name}
    for wanted in (view.properties, *palette.themed(view.roles).values()):
        for name, properties in wanted.items():
            assert set(properties) <= {*named[name].properties(), "reset_start", "reset_end"}, name
    for name, table in view.tables.items():
        assert set(table.data) == set(unpack(getattr(figure, f"_data_{name}"))) or not table.data, name


def test_a_redrawn_figure_sends_only_what_changed() -> None:
    figure = ScheduleFigure([picture("gpipe", cap=3), picture("1f1b", cap=3)])
    changed: list[str] = []
    figure.observe(lambda change: changed.append(change["name"]))
    figure.draw([picture("gpipe", cap=3), picture("1f1b", cap=3)])
    assert changed == []
    figure.point(CellPointer(0, 5))
    assert set(changed) == {"_data_schedules_now", "_data_schedules_later", "_data_schedules_wire"}
    figure.point(None)
    changed.clear()
    figure.draw([picture("gpipe", cap=3.5), picture("1f1b", cap=3.5)])
    data = {"_data_schedules_caps", "_data_schedules_over", "_data_schedules_labels"}
    assert set(changed) == data | {"_properties", "description"}


def test_a_figure_says_in_words_what_it_shows() -> None:
    one = picture("1f1b")
    figure = ScheduleFigure([one])
    assert figure.description == f"1f1b, 4 devices × 8 microbatches: {one.words}" == repr(figure)
    assert figure.headline == "1f1b leaves devices idle 27 % of the time"
    assert one.words.startswith("makespan 33 · bubble 27.3% (closed form (p−1)(F+B): 27.3%) · peak 4 microbatches")
    assert figure.bundle()["text/plain"] == figure.description


def test_of_several_schedules_the_fastest_is_told_beside_the_slowest() -> None:
    slow, middle, fast = picture("gpipe"), picture("1f1b"), picture("zb-v")
    assert ScheduleFigure([slow, middle]).headline == "gpipe and 1f1b take the same time"
    ratio = slow.makespan / fast.makespan
    assert ScheduleFigure([slow, middle, fast]).headline.startswith(f"zb-v is {ratio:.1f}")
    assert ScheduleFigure([slow, middle, fast]).headline.endswith("times as fast as 1f1b")
