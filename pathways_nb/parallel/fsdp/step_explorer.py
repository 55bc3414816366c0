"""``pw.explore_fsdp``: the plan of a step, its time and its memory, with choices that can be changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import traitlets as t

from pathways_nb.cost.hardware import tables
from pathways_nb.cost.model import CostModel
from pathways_nb.errors import PathwaysError, PlanError, UsageError, three_digits
from pathways_nb.parallel.fsdp import plans
from pathways_nb.parallel.fsdp.fsdp_plan import FsdpPlan
from pathways_nb.parallel.fsdp.passes.pass_registry import own_passes, watch
from pathways_nb.parallel.fsdp.passes.plan_passes import PassChoice, text_of_passes
from pathways_nb.parallel.fsdp.plan_text import plan_of_text
from pathways_nb.parallel.fsdp.step import FsdpStep
from pathways_nb.parallel.fsdp.step_picture import Box, StepPicture, picture_of
from pathways_nb.parallel.fsdp.timeline import StepTimeline, timeline
from pathways_nb.parallel.fsdp.variants import Variant, Variants, with_network
from pathways_nb.results.explorer_base import Explorer, ExplorerButton, check_choices, result_or_error
from pathways_nb.trace.metrics import duration
from pathways_nb.util.words import counted

if TYPE_CHECKING:
    from pathways_widgets.explorers.step_view import StepPlan

WRAPPINGS = ("per parameter", "per block", "greedy", "searched", "own")
_SEARCHED_FOR = ("mode", "three_streams", "devices", "chip", "bandwidth", "latency", "memory", "registrations")
"""Choices on which a search depends."""


class FsdpExplorer(Explorer[StepPicture]):
    """The buckets of a step, its timeline and its memory; every choice can be set from Python, too.

    A choice that cannot be planned shows its error in place of the pictures. ``bandwidth`` is in bytes/s, ``latency``
    in seconds, ``memory`` in bytes; None is the chip's own. ``chip`` is a chip or its name, ``passes`` a text such as
    ``late count=2; other``.
    """

    mode = t.Unicode(help="What is split over devices").tag(group="plan", options="modes", width=9)
    wrapping = t.Enum(WRAPPINGS, "per block", help="How buckets are chosen; 'own' takes those in the field below").tag(
        group="plan", label="plan", options="wrappings", width=15
    )
    prefetch = t.Int(1, help="How many gathers are under way before their turn").tag(group="plan", width=9)
    keep = t.Bool(False, help="All parameters stay gathered from the forward to the backward pass").tag(
        group="plan", label="keep gathered"
    )
    three_streams = t.Bool(False, help="Otherwise one stream carries both, one after another").tag(
        group="plan", label="gather and reduce each on a stream of its own"
    )
    devices = t.Int(
        help="Devices that split the batch. Each keeps a part as large as before: the whole batch grows with them"
    ).tag(group="machine", width=10)
    chip = t.Any(help="Whose rates and network are simulated").tag(group="machine", options="chips", width=15)
    bandwidth = t.Float(
        None, allow_none=True, help="Of each device, on one network that joins all; empty for the chip's links and NICs"
    ).tag(group="machine", unit=("GB/s", 9), width=15, empty="the chip's")
    latency = t.Float(None, allow_none=True, help="Before a collective starts; empty for the chip's").tag(
        group="machine", unit=("µs", -6), width=13, empty="the chip's"
    )
    memory = t.Float(None, allow_none=True, help="That a device has, for a search; empty for the chip's").tag(
        group="machine", unit=("GB", 9), width=13, empty="the chip's"
    )
    passes = t.Unicode(
        help="Passes that you registered with @pw.register_pass and that the plan runs, with their settings"
    ).tag(group="passes", label="your passes", suggestions="own_passes", empty="name setting=value; …")
    buckets = t.Unicode(
        help="A line for each bucket: layers.0 for all that begins so, layers.0-3 for four in one, layers.* for one "
        "bucket each. 'kept' at the end keeps a bucket gathered. After a line 'backward:' the buckets of the backward "
        "pass"
    ).tag(group="buckets", lines=4, shows="text")
    searches = t.Int(0, help="Number of searches so far.").tag(recompute=True)
    buttons = (
        ExplorerButton("search", "search", help="Search for the best plan for these choices; it takes seconds",
               busy="searching …"),
        ExplorerButton("keep beside", "keep_beside", help="Keep this plan's numbers below, beside those of others"),
        ExplorerButton("save", "save", "plan.json"),
        ExplorerButton("SVG", "savefig", "plan.svg"),
    )  # fmt: skip

    def __init__(self, variants: Variants, **choices: Any):
        self._variants = variants
        self._searched: FsdpPlan | str = ""
        self._searched_for: tuple[Any, ...] = ()
        self._shown_text: tuple[StepPicture | None, str] = None, ""
        self._search_lines: list[str] = []
        self.kept_plans: dict[str, FsdpPlan] = {}
        """Plans that were kept, by what their pictures said."""
        super().__init__(mode=variants.step.mode, devices=variants.devices, chip=variants.model.name)
        # Observed before the first values are set: explore_fsdp(buckets=…) chooses the user's own buckets, too.
        self.observe(self._buckets_typed, "buckets")
        self.observe(self._wrapping_chosen, "wrapping")
        for name, value in (self._variant().choices_of(variants.step.plan) | choices).items():
            setattr(self, name, value)
        watch(self)

    @property
    def own_passes(self) -> tuple[str, ...]:
        """What ``passes`` may hold: each pass of yours with each of the settings that a search tries."""
        return tuple(str(PassChoice(one.name, settings)) for one in own_passes() for settings in one.choices)

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that the place allows."""
        return self._variants.modes

    @property
    def wrappings(self) -> tuple[str, ...]:
        """The ways to choose buckets."""
        return WRAPPINGS

    @property
    def chips(self) -> tuple[str, ...]:
        """The names of chips that can be chosen."""
        return tuple(dict.fromkeys([self._variants.model.name, *tables.names("chips")]))

    @property
    def picture(self) -> StepPicture:
        """What is drawn for the present choices, or their error."""
        return self._result

    @property
    def plan(self) -> FsdpPlan:
        """The plan.

        Raises:
            UsageError: the choices are refused, and why.
        """
        return self._valid_picture.plan  # type: ignore[return-value]

    @property
    def timeline(self) -> StepTimeline:
        """The step of one device in simulated time; raises as ``plan`` does."""
        return self._valid_picture.timeline  # type: ignore[return-value]

    @property
    def bound(self) -> float:
        """Seconds of exposed communication that no plan avoids; raises as ``plan`` does."""
        return self._valid_picture.bound

    @property
    def collectives(self) -> tuple[Box, ...]:
        """The collectives in the order in which they begin; raises as ``plan`` does."""
        return self._valid_picture.collectives

    @property
    def step(self) -> FsdpStep:
        """The step with the mode and plan that are chosen, to be run: on its own place, unless it leaves ``"hsdp"``."""
        plan, step = self.plan, self._variants.step
        return (step if self.mode == step.mode else step.elsewhere(self.mode)).with_plan(plan)

    @property
    def text(self) -> str:
        """The buckets of the present plan as ``buckets`` takes them; what was typed if the plan is the user's own."""
        picture = self.picture
        if picture.plan is None or self.wrapping == "own":
            return self.buckets
        if self._shown_text[0] is not picture:
            self._shown_text = picture, self._variant().text(picture.plan)
        return self._shown_text[1]

    def search(self) -> None:
        """Search for the best plan for the present choices, and choose it; this takes seconds."""
        self._search_lines.clear()
        try:
            planner = self._variant().planner(self._cost_model())
            self._searched = replace(planner, streams=self._streams).search(
                self._limit(), say=self._search_lines.append
            )
        except PathwaysError as refused:
            self._searched = str(refused)
        self._searched_for = self._search_inputs
        # One change: else the picture would be drawn with a part of the plan, such as its prefetch with other buckets.
        with self.hold_trait_notifications():
            if isinstance(self._searched, FsdpPlan):
                self.prefetch = self._searched.prefetch
                self.passes = text_of_passes(self._searched.passes)
            self.wrapping = "searched"
            self.searches += 1

    def keep_beside(self) -> None:
        """Keep the present plan and its numbers beside those of others, in ``kept_plans``; raises as ``plan`` does."""
        self.kept_plans["\n".join(self._valid_picture.headings)] = self.plan

    def save(self, path: str | Path) -> None:
        """Save the plan as JSON, which ``FsdpPlan.load`` reads."""
        self.plan.save(path)

    def savefig(self, path: str | Path, width: str | float = 900) -> None:
        """Write the pictures to a file as ``Run.savefig`` does; raises as ``plan`` does."""
        self._valid_picture  # noqa: B018 - refuses to write a picture of an error
        super().savefig(path, width)

    # ---- how it is drawn

    def make_drawing(self) -> StepPlan:
        """Return what draws the buckets, the lanes and the memory."""
        from pathways_widgets.explorers.step_view import StepPlan

        return StepPlan()

    @property
    def tables(self) -> tuple[tuple[str, list[str]], ...]:
        """The collectives, and the schedule after each pass, as lines of text."""
        from pathways_widgets.explorers.step_tables import LETTERS, collective_lines, pass_lines

        collectives = counted(len(self.picture.collectives), "collective"), collective_lines(self.picture)
        kept = counted(len(self.kept_plans), "plan") + " kept beside this one", "\n\n".join(self.kept_plans).split("\n")
        return collectives, (f"schedule after each pass: {LETTERS}", pass_lines(self.picture)), kept

    # ---- what the choices mean

    @property
    def _valid_picture(self) -> StepPicture:
        if self.picture.error:
            raise UsageError(self.picture.error)
        return self.picture

    @property
    def _streams(self) -> Literal[2, 3]:
        return 3 if self.three_streams else 2

    @property
    def _search_inputs(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _SEARCHED_FOR)

    def _variant(self) -> Variant:
        return self._variants.at(self.mode, self.devices)

    def _cost_model(self) -> CostModel:
        """Return the cost model of the chip and the network that are chosen."""
        known = self._variants.model
        model = known if self.chip == known.name else CostModel.of(self.chip)
        return with_network(model, math.prod(self._variant().sizes.values()), self.bandwidth, self.latency)

    def _limit(self) -> float:
        return self._cost_model().chip.device.hbm_bytes if self.memory is None else self.memory

    def _plan(self, wrapping: str) -> FsdpPlan:
        """Return the plan of a way to choose buckets.

        Raises:
            PathwaysError: there is none.
        """
        variant = self._variant()
        if wrapping == "own":
            plan = plan_of_text(self.buckets, variant.names)
        elif wrapping == "searched" and isinstance(self._searched, FsdpPlan):
            plan = self._searched
        elif wrapping == "searched":
            raise PlanError(self._searched)
        elif wrapping == "greedy":
            plan = variant.planner(self._cost_model()).greedy()
        else:
            plan = (plans.per_block if wrapping == "per block" else plans.per_parameter)(
                variant.parameters, variant.mode
            )
        if not variant.mode.shards_parameters:  # nothing is gathered
            plan = replace(plan, buckets=plan.reduced, backward=None)
        kept = self.keep or not variant.mode.gathers_again
        # A search has written the passes of its plan into `passes` (see `search`); a text may name passes itself.
        of_text = plan.passes if wrapping == "own" else ()
        plan = plan.keeping(kept) if kept or wrapping != "own" else plan
        return replace(
            plan, prefetch=self.prefetch, passes=tuple({one.name: one for one in (*self._passes, *of_text)}.values())
        )

    @property
    def _passes(self) -> tuple[PassChoice, ...]:
        """The passes that are named apart from the text of the buckets; raises ``PlanError`` if there is none."""
        return tuple(PassChoice.read(text) for text in self.passes.split(";") if text.strip())

    def _compute(self) -> StepPicture:
        return result_or_error(self._picture, lambda error: StepPicture(error=error))

    def _picture(self) -> StepPicture:
        """Return the picture of the present choices.

        Raises:
            PathwaysError: they are refused, and why.
        """
        variant, model = self._variant(), self._cost_model()
        planner, plan = variant.planner(model), self._plan(self.wrapping)
        plan.check(variant.names)
        passed = variant.passed(plan, self.registrations)
        found = timeline(passed.graph, planner.costs, self._streams, planner.state_bytes)
        return picture_of(
            planner, plan, found, streams=self._streams, limit=self._limit(), passes=passed.lines,
            about=self._about(variant), note=self._note(variant),
        )  # fmt: skip

    def _about(self, variant: Variant) -> str:
        """Return where the step runs, in words."""
        sizes = " × ".join(str(size) for size in variant.sizes.values())
        network = [f"{three_digits(self.bandwidth / 1e9)} GB/s"] if self.bandwidth is not None else []
        network += [f"{duration(self.latency)} latency"] if self.latency is not None else []
        chip = self.chip if isinstance(self.chip, str) else self.chip.name
        return f"{self.mode} on {sizes} devices, {', '.join([chip, *network])}, each with {self._variants.batch_words}"

    def _note(self, variant: Variant) -> str:
        if variant.scans:
            return (
                "What a scan reads is gathered, and its gradients are reduced, in its loop: buckets do not change that."
            )
        if self.wrapping == "searched" and self._searched_for != self._search_inputs:
            return "The plan was searched for other choices: search again."
        return " ".join(self._search_lines) if self.wrapping == "searched" else ""

    # ---- what follows from a choice

    def _buckets_typed(self, change: Any) -> None:
        """Choose the buckets that were typed."""
        if change["new"]:
            self.wrapping = "own"

    def _wrapping_chosen(self, change: Any) -> None:
        """Begin with the buckets of before if the user's own are chosen; search if that was not done yet."""
        if change["new"] == "own" and not self.buckets:
            try:
                self.buckets = self._variant().text(self._plan(change["old"]))
            except PathwaysError:  # there were none
                return
        if change["new"] == "searched" and self._searched == "":
            self.search()


def explore_fsdp(step: FsdpStep, batch: Sequence[Any] | None = None, chip: Any = None, **choices: Any) -> FsdpExplorer:
    """Return an explorer of a step's plan: controls as the last expression of a cell, attributes from Python.

    It shows the buckets, the step of one device in simulated time, exposed communication and its bound, and memory.
    ``explorer.plan`` is the plan that is shown, ``explorer.step`` the step that runs it.

    Args:
        step: a step that ``pw.fsdp`` made.
        batch: arrays or shapes of a whole batch; by default those of the last call, or ``batch=`` of ``pw.fsdp``.
        chip: a chip, its name or a cost model; by default that of the simulated devices.
        **choices: first values of the explorer's attributes, such as ``mode``, ``buckets``, ``devices``, ``bandwidth``.

    Raises:
        UsageError: no batch or no chip is known, or there is no such choice.
    """
    if not isinstance(step, FsdpStep):
        raise UsageError(f"explore_fsdp: {step!r} is no step; pass what pw.fsdp(loss_fn, params, on=place) returned.")
    check_choices("explore_fsdp", choices, FsdpExplorer.all_choices())
    return FsdpExplorer(Variants(step, batch, chip), **choices)
