"""Controls made from the traits of an explorer: each choice has one, with its words, its tooltip and its unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import ipywidgets
import jax
import jax.numpy as jnp
import pytest
import traitlets as t

import pathways_nb as pw
from pathways_nb.parallel.schedules import registry
from pathways_nb.parallel.terapipe.slicing_picture import SlicingPicture
from pathways_nb.results.explorer_base import Explorer, ExplorerButton
from pathways_widgets.explorers.controls_panel import ControlsPanel
from pathways_widgets.explorers.token_view import TokenSlices


def fsdp_explorer() -> pw.FsdpExplorer:
    params = {name: jax.ShapeDtypeStruct((8, 8), jnp.float32) for name in ("first", "last")}
    batch = (jax.ShapeDtypeStruct((4, 8), jnp.float32),)
    step = pw.fsdp(lambda p, x: (x @ p["first"] @ p["last"]).mean(), params, on=pw.virtual_slice(4), batch=batch)
    return pw.explore_fsdp(step, chip="gpu_h100_sxm")


Choice = tuple[str, Any, Any, Any, Any]
"""The words of a control, what it is set to, what the trait is then, what the trait is set to, and what is shown."""
CHOICES: dict[Callable[[], Any], dict[str, Choice]] = {
    pw.explore_schedules: {
        "first_name": ("above", "zb-v", "zb-v", "1f1b", "1f1b"),
        "second_name": ("below", "dualpipe", "dualpipe", "gpipe", "gpipe"),
        "devices": ("devices", 2, 2, 6, 6),
        "microbatches": ("microbatches", 4, 4, 12, 12),
        "chunks": ("chunks", "3", 3, None, ""),
        "token_slices": ("token slices", "2", 2, None, ""),
        "F": ("F", 1.5, 1.5, 2.0, 2.0),
        "I": ("I", 0.5, 0.5, 2.0, 2.0),
        "W": ("W", 0.0, 0.0, 2.0, 2.0),
        "transfer": ("transfer", 0.25, 0.25, 0.5, 0.5),
        "cap": ("memory cap", "2.5", 2.5, 1 / 3, "0.333333"),
    },
    pw.terapipe.explore: {
        "stages": ("stages", 4, 4, 8, 8),
        "length": ("length", 1024, 1024, 512, 512),
        "batch": ("batch", 2, 2, 3, 3),
        "granularity": ("granularity", 16, 16, 32, 32),
        "uniform": ("uniform slices", 4, 4, 16, 16),
        "floor": ("floor, ms", 20.0, 0.02, 0.05, 50.0),
        "fixed": ("fixed, ms", 20.0, 0.02, 0.05, 50.0),
        "per_token": ("per token, µs", 100.0, 1e-4, 5e-5, 50.0),
        "per_pair": ("per pair, ns", 10.0, 1e-8, 5e-9, 5.0),
    },
    fsdp_explorer: {
        "mode": ("mode", "zero2", "zero2", "ddp", "ddp"),
        "wrapping": ("plan", "greedy", "greedy", "per parameter", "per parameter"),
        "prefetch": ("prefetch", 0, 0, 2, 2),
        "keep": ("keep gathered", True, True, False, False),
        "three_streams": ("gather and reduce each on a stream of its own", True, True, False, False),
        "devices": ("devices", 8, 8, 16, 16),
        "chip": ("chip", "tpu_v4", "tpu_v4", "tpu_v5p", "tpu_v5p"),
        "bandwidth": ("bandwidth, GB/s", "20", 20e9, 50e9, "50"),
        "latency": ("latency, µs", "40", 40e-6, None, ""),
        "memory": ("memory, GB", "64", 64e9, 1e9 / 3, "0.333333"),
        "passes": ("your passes", "late", "late", "", ""),
        "buckets": ("buckets", "first; last", "first; last", "first, last", "first, last"),
    },
}
SET_BY_NO_PERSON = {"names", "laid", "registrations", "searches"}
"""Traits that follow from what is done elsewhere."""
NOT_SHOWN_AS_A_CONTROL = {"cost"}
"""A function, which is an argument of ``pw.terapipe.explore``."""


@pytest.mark.parametrize("make", CHOICES)
def test_every_trait_that_may_be_set_has_a_control_with_its_words_and_tooltip(make: Callable[[], Any]) -> None:
    explorer = make()
    panel = ControlsPanel(explorer)
    played = {"step"} if make is pw.explore_schedules else set()
    assert list(panel.controls) == list(CHOICES[make])
    assert set(explorer.trait_names()) - SET_BY_NO_PERSON - NOT_SHOWN_AS_A_CONTROL == {*panel.controls, *played}
    for name, control in panel.controls.items():
        assert control.description == CHOICES[make][name][0]
        assert control.tooltip == explorer.traits()[name].help != ""


def nearly(value: Any) -> Any:
    return pytest.approx(value) if isinstance(value, float) else value


@pytest.mark.parametrize("make", CHOICES)
def test_a_control_sets_its_trait_and_shows_it(make: Callable[[], Any]) -> None:
    explorer = make()
    panel = ControlsPanel(explorer)
    for name, (_, typed, chosen, value, shown) in CHOICES[make].items():
        panel.controls[name].value = typed
        assert getattr(explorer, name) == nearly(chosen), name
        setattr(explorer, name, value)
        assert panel.controls[name].value == nearly(shown), name
        assert getattr(explorer, name) == value, "a control that rounds does not write back"


def test_a_step_is_played_by_a_slider() -> None:
    explorer = pw.explore_schedules()
    panel = ControlsPanel(explorer)
    panel.slider.value = 3
    assert (explorer.step, panel.slider.description) == (3, "step")
    explorer.step = 5
    assert panel.slider.value == 5


def test_menus_keep_their_choice_when_a_schedule_is_registered(own_schedules: None) -> None:
    explorer = pw.explore_schedules("zb-v", "dualpipe")
    panel = ControlsPanel(explorer)
    pw.register_schedule("mine")(registry.kind_of("1f1b").generate)
    assert (explorer.first_name, explorer.second_name) == ("zb-v", "dualpipe")
    assert [panel.controls[name].value for name in ("first_name", "second_name")] == ["zb-v", "dualpipe"]
    assert "mine" in panel.controls["first_name"].options
    panel.controls["first_name"].value = "mine"
    assert explorer.first_name == "mine"


def test_a_menu_offers_a_chip_of_the_user_s_own() -> None:
    explorer = fsdp_explorer()
    menu = ControlsPanel(explorer).controls["chip"]
    explorer.chip = own = pw.chip("tpu_v4").replace(name="mine")
    assert menu.value is explorer.chip is own
    assert ("mine", own) in menu.options
    menu.value = "tpu_v4"
    assert explorer.chip == "tpu_v4"


# ---- an explorer that is made up here


class Weights(Explorer[SlicingPicture]):
    """Some boxes of one kind."""

    count = t.Int(2, help="Number of boxes").tag(group="boxes")
    kind = t.Enum(("tin", "wood"), "wood", help="What they are made of").tag(group="boxes", label="made of")
    weight = t.Float(None, allow_none=True, help="Of one box").tag(group="weight", unit=("kg", 3), empty="unknown")
    buttons = (ExplorerButton("SVG", "savefig", "boxes.svg"), ExplorerButton("none", "remove", help="Remove all boxes"))
    notes: ClassVar[dict[str, str]] = {"boxes": "Boxes are equal."}

    def _compute(self) -> SlicingPicture:
        return SlicingPicture(error=f"{self.count} boxes of {self.kind}, {(self.weight or 0) * self.count:g} g")

    def make_drawing(self) -> TokenSlices:
        return TokenSlices()

    def remove(self) -> None:
        self.count = 0


def test_a_new_explorer_has_a_panel_without_further_code() -> None:
    explorer = Weights()
    panel = ControlsPanel(explorer)
    (row, weight, refusal, figure, below) = panel.children
    assert [type(one).__name__ for one in row.children] == ["IntText", "Dropdown", "Label", "HTML"]
    assert [one.description for one in row.children] == ["count", "made of", "", ""]
    assert row.children[2].value == "Boxes are equal."
    assert (weight.description, weight.placeholder, weight.tooltip) == ("weight, kg", "unknown", "Of one box")
    weight.value, row.children[1].value = "1.5", "tin"
    assert figure.description == repr(explorer) == "2 boxes of tin, 3000 g"
    assert "2 boxes of tin" in row.children[-1].value, "this explorer refuses everything, beside what was changed last"
    weight.value = "much"
    assert "weight, kg: 'much' is no number" in refusal.value, "beside its field"
    assert weight.value == "1.5"
    (remove,) = (
        one for one in below.children if isinstance(one, ipywidgets.Button) and one.tooltip == "Remove all boxes"
    )
    remove.click()
    assert (explorer.count, panel.controls["count"].value, repr(explorer)) == (0, 0, "0 boxes of tin, 0 g")


def test_a_result_is_computed_once_for_each_change() -> None:
    explorer = Weights()
    first = explorer._result
    assert explorer._result is first
    explorer.count = 3
    assert explorer._result is not first


def test_a_misspelled_tag_is_refused() -> None:
    with pytest.raises(TypeError, match="^Wrong: there is no tag lable; see Explorer.$"):
        type("Wrong", (Explorer,), {"count": t.Int(1).tag(group="boxes", lable="number")})
