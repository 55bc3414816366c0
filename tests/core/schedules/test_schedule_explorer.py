"""The explorer and comparison of schedules without a notebook: what is chosen, what comes of it, what is refused."""

from __future__ import annotations

import csv
import gc
from itertools import pairwise

import numpy as np
import pytest
from traitlets import TraitError

import pathways_nb as pw
from pathways_nb.parallel import schedule_explorer
from pathways_nb.parallel.schedules import registry
from pathways_widgets.drawing.scene import Text
from pathways_widgets.explorers.controls_panel import ControlsPanel


def test_it_gives_the_schedules_to_check_and_their_timings() -> None:
    explorer = pw.explore_schedules("zb-v", "dualpipe", devices=4, microbatches=8, W=0.5)
    assert explorer.first == pw.schedule("zb-v", 4, 8)
    assert explorer.second == pw.schedule("dualpipe", 4, 8)
    assert [one.makespan for one in explorer.timings] == [one.makespan(W=0.5) for one in explorer.schedules]
    assert explorer.first.check().name == "zb-v"


def test_choices_are_traits_and_a_choice_made_before_is_kept() -> None:
    explorer = pw.explore_schedules()
    first = explorer.first
    explorer.first_name, explorer.devices = "1f1b", 6
    assert explorer.first == pw.schedule("1f1b", 6, 8)
    explorer.first_name, explorer.devices = "gpipe", 4
    assert explorer.first is first


def test_sizes_go_to_the_schedules_that_have_them() -> None:
    explorer = pw.explore_schedules("interleaved-1f1b", "seq1f1b", chunks=4, token_slices=2)
    assert (explorer.first.size.chunks, explorer.first.size.token_slices) == (4, 1)
    assert (explorer.second.size.chunks, explorer.second.size.token_slices) == (1, 2)
    explorer.chunks = None
    assert explorer.first.size.chunks == 2


def test_what_one_schedule_refuses_is_said_there_and_the_other_stays() -> None:
    explorer = pw.explore_schedules("dualpipe", "1f1b", devices=3)
    with pytest.raises(pw.UsageError, match="^schedule 'dualpipe': devices=3 is odd") as refused:
        pw.schedule("dualpipe", 3, 8)
    assert explorer.pictures[0].words == str(refused.value)
    assert explorer.schedules == (None, pw.schedule("1f1b", 3, 8))
    assert explorer.timings[1].makespan == 30
    with pytest.raises(pw.UsageError, match="devices=3 is odd"):
        _ = explorer.first
    explorer.devices = 0
    assert "devices=0 is no whole number above 0" in explorer.pictures[1].words
    explorer.devices, explorer.F = 4, -1
    assert all("F=-1.0 is no time" in one.words for one in explorer.pictures)


def test_the_bubble_stands_beside_its_closed_form_or_the_word_that_there_is_none() -> None:
    explorer = pw.explore_schedules("gpipe", "zb-v", microbatches=2)
    assert "bubble 60.0% (closed form (p−1)(F+B): 60.0%)" in explorer.pictures[0].words
    explorer.transfer = 0.5
    assert "no closed form for these times" in explorer.pictures[0].words
    explorer.transfer = 0
    assert "(no closed form but for m ≥ 2p−1, F = I ≥ W ≥ I/2)" in explorer.pictures[1].words
    kinds = {name: registry.kind_of(name) for name in pw.schedules()}
    for name, kind in kinds.items():
        explorer = pw.explore_schedules(name, microbatches=8)
        holds = kind.bubble is not None and kind.bubble.where(explorer.first.size, schedule_explorer.Times())
        assert ("closed form " + (kind.bubble.text if kind.bubble else "") in explorer.pictures[0].words) == holds


def test_a_schedule_above_the_cap_is_marked() -> None:
    explorer = pw.explore_schedules(cap=4)
    assert [one.over.tolist() for one in explorer.pictures] == [[0, 1, 2, 3], []]
    assert "exceeds the cap of 4 on 4 of 4 devices" in repr(explorer)
    explorer.cap = None
    assert "cap" not in repr(explorer)


def test_steps_go_through_all_cells_in_the_order_of_time_and_say_why() -> None:
    explorer = pw.explore_schedules("1f1b", "zb-v")
    timings = explorer.timings
    assert explorer.steps == sum(len(timing.start) for timing in timings if timing)
    assert (explorer.pointed, explorer.why) == (None, "")
    seen = []
    for step in range(1, explorer.steps + 1):
        explorer.step = step
        which, cell = explorer.pointed or (-1, -1)
        seen.append((which, cell))
        assert timings[which].why(cell) in explorer.why
        assert str(timings[which].tasks.cells[cell]) in explorer.why
    assert len(set(seen)) == explorer.steps
    assert all(timings[a].start[i] <= timings[b].start[j] for (a, i), (b, j) in pairwise(seen))
    explorer.devices = 2
    assert explorer.pointed is not None, "a step beyond the end is the last"


def test_a_schedule_of_one_s_own_can_be_chosen_as_soon_as_it_is_registered(own_schedules) -> None:
    explorer = pw.explore_schedules()
    assert "mine" not in explorer.names

    @pw.register_schedule("mine")
    def generate(devices: int, microbatches: int) -> list[str]:
        return [" ".join(f"{d}F{m}" for m in range(microbatches)) + " " + " ".join(f"{d}B{m}" for m in range(microbatches))
                for d in range(devices)]  # fmt: skip

    assert "mine" in explorer.names
    explorer.second_name = "mine"
    assert explorer.second == explorer.first
    assert "(no closed form)" in explorer.pictures[1].words

    @pw.register_schedule("mine")
    def wrong(devices: int, microbatches: int) -> list[str]:
        return [["0F0"]][devices]

    assert explorer.registrations == 2
    assert explorer.pictures[1].words == "schedule 'mine' failed: IndexError: list index out of range"
    assert explorer.schedules[0] is not None


def test_an_error_of_several_lines_is_shown_as_lines(own_schedules) -> None:
    @pw.register_schedule("mine")
    def lines(devices: int, microbatches: int) -> str:
        raise ValueError("first\nsecond")

    explorer = pw.explore_schedules("mine", "1f1b", devices=2, microbatches=2)
    panel = ControlsPanel(explorer)
    explorer.first_name, explorer.second_name = "1f1b", "mine"
    assert panel.controls["second_name"].value == "mine"
    shown = [shape.text for shape in explorer.scene().shapes if isinstance(shape, Text)]
    assert shown[shown.index("schedule 'mine' failed: ValueError: first") + 1] == "second"
    explorer.second_name = "1f1b"  # ipywidgets keeps the panel, and so its explorer, which hears of later registrations


def test_unknown_names_and_choices_are_refused_and_change_nothing() -> None:
    explorer = pw.explore_schedules()
    with pytest.raises(pw.UsageError, match="There is no schedule 'gpip'. Did you mean gpipe?"):
        explorer.first_name = "gpip"
    with pytest.raises(TraitError):
        explorer.set_trait("devices", "many")
    assert (explorer.first_name, explorer.devices) == ("gpipe", 4)
    with pytest.raises(pw.UsageError, match="There is no schedule '1f1'"):
        pw.explore_schedules("gpipe", "1f1")
    with pytest.raises(
        pw.UsageError, match="^explore_schedules: there is no 'chunk' to choose. All: devices, microbatches, chunks"
    ):
        pw.explore_schedules(chunk=2)


def test_its_table_is_that_of_both(tmp_path) -> None:
    explorer = pw.explore_schedules("gpipe", "1f1b", devices=2, microbatches=2, F=2)
    explorer.to_csv(tmp_path / "a.csv")
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    explorer.second.to_csv(tmp_path / "b.csv", F=2, I=1, W=1)
    alone = list(csv.DictReader((tmp_path / "b.csv").read_text().splitlines()))
    assert [{k: v for k, v in row.items() if k != "schedule"} for row in rows if row["schedule"] == "1f1b"] == alone
    assert len(rows) == 16
    explorer.savefig(tmp_path / "a.svg")
    assert "gpipe, 2 devices" in (tmp_path / "a.svg").read_text()


def test_the_collector_is_as_before() -> None:
    gc.disable()
    try:
        assert pw.explore_schedules(devices=5).first.size.devices == 5
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert pw.explore_schedules("dualpipe", devices=5).schedules[0] is None
    assert gc.isenabled()


# ---- comparison


def test_schedules_are_compared_action_by_action() -> None:
    both = pw.compare(pw.schedule("gpipe", 4, 8), pw.schedule("1f1b", 4, 8))
    table = both.table
    a, b = (pw.schedule(name, 4, 8).timing() for name in ("gpipe", "1f1b"))
    for stage, operation, microbatch, start_a, start_b, later in zip(
        *(table[name].tolist() for name in ("stage", "operation", "microbatch", "start_a", "start_b", "later")),
        strict=True,
    ):
        name = f"{stage}{operation}{microbatch}"
        for timing, start in ((a, start_a), (b, start_b)):
            assert timing.start[list(map(str, timing.tasks.cells)).index(name)] == start
        assert later == start_b - start_a
    assert len(table["stage"]) == 64
    assert (np.diff(table["start_a"]) >= 0).all()
    assert repr(both) == (
        "<comparison: gpipe 33 (bubble 27.3%, peak 8) · 1f1b 33 (bubble 27.3%, peak 4) · "
        "64 actions matched, 0 and 0 without partner>"
    )


def test_what_is_split_differently_has_no_partner_and_times_are_passed_on(tmp_path) -> None:
    both = pw.compare(pw.schedule("1f1b", 4, 8), pw.schedule("zb-h1", 4, 8))
    found = both.difference(F=2)
    assert (len(found.table["stage"]), found.only_a, found.only_b) == (32, 32, 64)
    assert set(found.table["operation"]) == {"F"}
    assert found.table["end_a"][0] == 2
    both.to_csv(tmp_path / "a.csv", F=2)
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [float(row["later"]) for row in rows] == found.table["later"].tolist()


def test_two_of_one_name_are_told_apart(capsys) -> None:
    pw.compare(pw.schedule("1f1b", 4, 8), pw.schedule("1f1b", 4, 16)).show(cap=2)
    said = capsys.readouterr().out
    assert said.startswith("1f1b (a), 4 devices × 8 microbatches: makespan 33")
    assert "1f1b (b), 4 devices × 16 microbatches" in said
    assert "exceeds the cap of 2 on 2 of 4 devices" in said


def test_what_is_no_schedule_is_refused() -> None:
    with pytest.raises(pw.UsageError, match=r"^compare: the second argument is a str, not a run .* and no pw.schedule"):
        pw.compare(pw.schedule("gpipe", 2, 2), "1f1b")


def test_two_schedules_that_are_refused_are_a_picture_of_two_reasons(tmp_path) -> None:
    explorer = pw.explore_schedules("dualpipe", "dualpipe-v", devices=3, microbatches=2)
    assert (explorer.schedules, explorer.steps, explorer.pointed) == ((None, None), 0, None)
    explorer.savefig(tmp_path / "both.svg")
    said = (tmp_path / "both.svg").read_text()
    assert "devices=3 is odd" in said
    assert "microbatches=2 does not fit devices=3" in said


@pytest.mark.parametrize("cap", [-1.0, float("nan")])
def test_a_cap_that_is_no_number_is_refused_in_words(cap: float) -> None:
    assert all("is no number of microbatches" in one.words for one in pw.explore_schedules(cap=cap).pictures)
    with pytest.raises(
        pw.UsageError, match=r"cap='much' is no number of microbatches of activations, such as 4 or 2.5"
    ):
        pw.schedule("gpipe", 2, 2).show(cap="much")
