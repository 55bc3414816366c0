"""Views of figures as text: what is refused, and which part goes to the figure and which to the player."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pathways_widgets import LiveFigure
from pathways_widgets.drawing import palette
from pathways_widgets.drawing.picked_rows import Picked
from pathways_widgets.drawing.scene import Rect, Text
from pathways_widgets.drawing.views import Moment
from pathways_widgets.figures.page import page_of
from pathways_widgets.figures.run_still import scene_of, write
from pathways_widgets.figures.selected_events import Selection
from pathways_widgets.figures.viewpoint import seen_at, split_view
from tests.core.results.test_decision_explorer import of_two_clients
from tests.core.widgets.fake_run import fake_run


def test_a_view_is_split_into_the_part_of_the_figure_and_that_of_the_player() -> None:
    assert split_view("") == ("", {})
    written = "time=0.001,0.002&pick=step%231&pick=step%232&hide=a+%26+b&step=12&rule=policy&client=no+client"
    of_figure, of_player = split_view(written)
    assert of_figure == "time=0.001,0.002&pick=step%231&pick=step%232&hide=a+%26+b"
    assert of_player == {"step": "12", "rule": "policy", "client": "no client"}
    assert split_view(of_figure) == (of_figure, {})
    chosen = "filter=%7B%22place%22%3A%5B%22island+0%22%5D,%22shortest%22%3A0.001%7D"
    assert split_view(chosen) == (chosen, {})


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("tiem=1,2", "at='tiem=1,2': a view has no part 'tiem'; its parts are time, graph, level"),
        ("time=1", "time='1' should be two times in seconds, such as 0.001,0.002"),
        ("time=1,nan", "time='1,nan' should be two times"),
        ("step=-1", "step='-1' should be the number of a decision"),
        ('filter={"plcae":[]}', "should be the conditions of the filter"),
        ('filter={"kind":["computing"]}', "should be the conditions of the filter"),
        ("filter=3", "should be the conditions of the filter"),
        ('filter={"text":5}', "should be the conditions of the filter"),
        ('filter={"client":[5]}', "should be the conditions of the filter"),
        ("filter=" + 10_000 * "[", "should be the conditions of the filter"),
        ("somewhere", "a view has no part 'somewhere'; .* written as time=0.001,0.002&step=3"),
        (3, "at=3: a text is needed, which 'copy this view' below a figure gives"),
    ],
)
def test_what_is_no_view_is_refused_with_the_part_that_is_wrong(at: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        split_view(at)


def test_only_a_figure_that_a_call_shows_again_offers_its_view() -> None:
    figure = LiveFigure(fake_run(), at="time=0.1,0.2")
    assert figure.get_state()["_at"] == "time=0.1,0.2"
    assert figure.get_state()["_call"] == ""
    figure.offer_view('run.show("timeline", at="')
    assert figure.get_state()["_call"] == 'run.show("timeline", at="'


def test_a_page_says_where_it_opens_and_is_small() -> None:
    text = page_of(fake_run(), ("timeline",), "time=0.1,0.2&hide=</script>")
    assert '"at": "time=0.1,0.2&hide=\\u003c/script>"' in text
    assert len(text) < 1e6


def test_a_player_opens_at_a_step_and_tells_it_beside_the_view_of_its_figure() -> None:
    decisions = of_two_clients()
    player = decisions.explore()
    player.open_at({"rule": "policy", "step": "1"}, "time=3,4")
    figure = player.make_figure()
    state = figure.get_state()
    assert (state["_call"], state["_at"], state["view_beside"]) == ('run.show(at="', "time=3,4", "step=1&rule=policy")
    player.step += 1
    assert figure.view_beside == "step=2&rule=policy"
    player.open_at({"step": "1000"})
    assert player.step == player.steps == len(decisions)
    with pytest.raises(ValueError, match="at: client='nobody': choose one of any, "):
        player.open_at({"client": "nobody"})


def test_a_still_picture_shows_the_part_filter_and_kinds_of_its_view() -> None:
    run = fake_run()
    moment, window, *_ = seen_at(Moment.of(run), "time=0.2,0.1&hide=computation&pick=a%231")
    assert window == (0.1, 0.2)
    computed = [set(one.events["name"][one.events.is_("kind", "compute")].tolist()) for one in (run, moment)]
    assert computed[1] == {name for name in computed[0] if name.endswith("(bwd)")} < computed[0]
    assert set(moment.events["kind"]) == set(run.events["kind"]), "backward work and levels of memory are left"
    filtered, whole, *_ = seen_at(Moment.of(run), split_view('filter={"place":["island 1"]}')[0])
    assert whole is None
    has_box = ~filtered.events.is_("kind", "memory")
    assert set(filtered.events["island"][has_box].tolist()) == {1}
    assert seen_at(Moment.of(run), "").moment.events is run.events


def test_what_is_picked_keeps_its_colour_in_a_still_picture_and_the_rest_fades() -> None:
    run = fake_run()
    program = run.programs[0].graph
    node = next(one for one in program.nodes if one.name == "stage1")
    plain = palette.KINDS[palette.CODES["compute"]].colour

    def colours(at: str, show: str) -> list[str]:
        return [one.fill for one in scene_of(run, (show,), at=at).shapes if isinstance(one, Rect)]

    whole = colours("", "timeline").count(plain)
    for at in (f"pick={program.name}%23{node.id}", "find=STAGE1"):
        some = colours(at, "timeline")
        assert 0 < some.count(plain) < whole, at
        # The entry of the legend has its colour.
        assert some.count(palette.pale(plain)) == whole - some.count(plain) if "pick" in at else True
        assert colours("", "graph") != colours(at, "graph")
    assert colours("pick=none%231", "timeline") == colours("", "timeline"), "nothing is picked, so nothing fades"


def test_an_id_of_a_whole_program_stands_for_all_of_its_nodes() -> None:
    table = {"t": {"ids": ["p#1 p#2", "p#*", "q#1", ""], "names": ["f", "8 events here", "Fg", "f"]}}

    def picked(*ids: str, word: str = "") -> list[bool]:
        found = Picked(frozenset(ids), word).among(table, "t", "ids", "names")
        return found["t"].tolist() if found else []

    assert picked("p#2") == [True, True, False, False]
    assert picked("p#*") == [True, True, False, False]
    assert picked("q#*") == [False, False, True, False]
    assert picked("r#1") == picked() == picked(word="no such name") == []
    assert picked(word="f") == [True, False, True, True]
    assert Picked(word="f").with_nodes([("Of", "p#3"), ("g", "p#4"), ("f", "")]).ids == {"p#3"}


def test_a_brushed_part_is_shaded_in_a_still_picture_with_its_totals_below() -> None:
    run = fake_run()
    plain, brushed = (scene_of(run, ("timeline",), at=at) for at in ("", "brush=0.2,0.1"))
    texts = [one.text for one in brushed.shapes if isinstance(one, Text)]
    assert str(Selection.of(run, (0.1, 0.2))).splitlines()[0] in texts
    assert brushed.height > plain.height
    (shade,) = [one for one in brushed.shapes if isinstance(one, Rect) and one.dash and one.fill.endswith("28")]
    assert shade.width == pytest.approx(0.1 / run.events["end"].max() * 784, rel=0.1)
    # What is brushed outside of the visible part is not shaded, and its totals are told.
    beside = scene_of(run, ("timeline",), at="brush=0.1,0.2&time=0.3,0.4")
    assert not any(isinstance(one, Rect) and one.fill.endswith("28") for one in beside.shapes)
    assert texts[-2:] == [one.text for one in beside.shapes if isinstance(one, Text)][-2:]


def test_a_still_picture_of_a_part_is_zoomed(tmp_path: Path) -> None:
    run = fake_run()
    whole, part = (scene_of(run, ("timeline", "memory"), at=at) for at in ("", "time=0.1,0.2"))
    wide = [
        max(
            one.width
            for one in scene.shapes
            if isinstance(one, Rect) and one.fill == palette.KINDS[palette.CODES["backward"]].colour
        )
        for scene in (whole, part)
    ]
    assert wide[1] > 1.5 * wide[0]
    assert {"100 ms", "200 ms"} <= {one.text for one in part.shapes if isinstance(one, Text)}
    assert max(one.x + one.width for one in part.shapes if isinstance(one, Rect)) <= part.width
    write(run, tmp_path / "part.svg", show=("timeline",), at="time=0.1,0.2&step=3")
    assert "200 ms" in (tmp_path / "part.svg").read_text("utf-8")
    with pytest.raises(ValueError, match="a view has no part 'tiem'"):
        write(run, tmp_path / "part.svg", at="tiem=1,2")
