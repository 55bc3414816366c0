"""``pw.explore_fsdp``: the plan of a step, its time and its memory, with choices that can be changed.

The explorer holds the choices and what comes of them and needs no notebook, so that it is tested as plain Python;
``pathways_widgets.explorers.step_controls`` adds the controls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

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
from pathways_nb.trace.metrics import duration
from pathways_nb.util.collecting import uncollected

WRAPPINGS = ("per parameter", "per block", "greedy", "searched", "own")
CHOICES = ("mode", "wrapping", "prefetch", "keep", "three_streams", "devices", "chip", "bandwidth", "latency",
           "memory", "passes", "buckets")  # fmt: skip
_SEARCHED_FOR = ("mode", "three_streams", "devices", "chip", "bandwidth", "latency", "memory", "registrations")
"""Choices on which a search depends."""


class FsdpExplorer(t.HasTraits):
    """The buckets of a step, its timeline and its memory; every choice can be set from Python, too.

    A choice that cannot be planned shows its error in place of the pictures.
    """

    mode = t.Unicode(help="What is split: a mode of ``pw.fsdp``.")
    wrapping = t.Enum(WRAPPINGS, "per block", help="How buckets are chosen; 'own' takes those of ``buckets``.")
    buckets = t.Unicode(
        help="The user's own buckets: ``layers.0-3`` for four layers, ``layers.*`` for one bucket each."
    )
    prefetch = t.Int(1, help="How many gathers are under way before their turn.")
    keep = t.Bool(False, help="Whether all parameters stay gathered from the forward to the backward pass.")
    three_streams = t.Bool(False, help="Whether gathers and reductions each have a stream of their own.")
    devices = t.Int(help="Number of devices that split the batch; each keeps a part as large as before.")
    chip = t.Any(help="A chip or its name.")
    bandwidth = t.Float(None, allow_none=True, help="Bytes/s of each device, on one network; None for the chip's own.")
    latency = t.Float(None, allow_none=True, help="Seconds before a collective starts; None for the chip's own.")
    memory = t.Float(None, allow_none=True, help="Bytes that a device has, for a search; None for the chip's own.")
    passes = t.Unicode(help="Passes of yours that the plan runs, with their settings: ``late count=2; other``.")
    searches = t.Int(0, help="Number of searches so far.")
    registrations = t.Int(0, help="How many passes were registered since this was made.")

    def __init__(self, variants: Variants, **choices: Any):
        self._variants = variants
        self._searched: FsdpPlan | str = ""
        self._searched_for: tuple[Any, ...] = ()
        self._kept: tuple[tuple[Any, ...], StepPicture] | None = None
        self._told: tuple[StepPicture | None, str] = None, ""
        self._said: list[str] = []
        super().__init__(mode=variants.step.mode, devices=variants.devices, chip=variants.model.name)
        self.observe(self._typed, "buckets")
        self.observe(self._wrapped, "wrapping")
        for name, value in (self._variant().choices_of(variants.step.plan) | choices).items():
            setattr(self, name, value)
        watch(self)

    def registered(self) -> None:
        """Time the plan again after a pass was registered, perhaps one that it runs."""
        self.registrations += 1

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
        chosen = (*(getattr(self, name) for name in CHOICES), self.searches, self.registrations)
        if self._kept is None or self._kept[0] != chosen:
            with uncollected():
                self._kept = chosen, self._made()
        return self._kept[1]

    @property
    def plan(self) -> FsdpPlan:
        """The plan.

        Raises:
            UsageError: the choices are refused, and why.
        """
        return self._drawn.plan  # type: ignore[return-value]

    @property
    def timeline(self) -> StepTimeline:
        """The step of one device in simulated time; raises as ``plan`` does."""
        return self._drawn.timeline  # type: ignore[return-value]

    @property
    def bound(self) -> float:
        """Seconds of exposed communication that no plan avoids; raises as ``plan`` does."""
        return self._drawn.bound

    @property
    def collectives(self) -> tuple[Box, ...]:
        """The collectives in the order in which they begin; raises as ``plan`` does."""
        return self._drawn.collectives

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
        if self._told[0] is not picture:
            self._told = picture, self._variant().text(picture.plan)
        return self._told[1]

    def search(self) -> None:
        """Search for the best plan for the present choices, and choose it; this takes seconds."""
        self._said.clear()
        try:
            planner = self._variant().planner(self._cost_model())
            self._searched = replace(planner, streams=self._streams).search(self._limit(), say=self._said.append)
        except PathwaysError as refused:
            self._searched = str(refused)
        self._searched_for = self._for
        with self.hold_trait_notifications():
            if isinstance(self._searched, FsdpPlan):
                self.prefetch = self._searched.prefetch
                self.passes = text_of_passes(self._searched.passes)
            self.wrapping = "searched"
            self.searches += 1

    def save(self, path: str | Path) -> None:
        """Save the plan as JSON, which ``FsdpPlan.load`` reads."""
        self.plan.save(path)

    def savefig(self, path: str | Path, width: str | float = 900) -> None:
        """Write the pictures to a file.

        Args:
            path: file name that ends in ``.svg`` or ``.png``.
            width: of the picture, as for ``Run.savefig``.
        """
        from pathways_widgets.explorers.step_display import write

        write(self._drawn, path, width)

    # ---- what the choices mean

    @property
    def _drawn(self) -> StepPicture:
        if self.picture.error:
            raise UsageError(self.picture.error)
        return self.picture

    @property
    def _streams(self) -> Literal[2, 3]:
        return 3 if self.three_streams else 2

    @property
    def _for(self) -> tuple[Any, ...]:
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
        named = plan.passes if wrapping == "own" else ()
        plan = plan.keeping(kept) if kept or wrapping != "own" else plan
        return replace(
            plan, prefetch=self.prefetch, passes=tuple({one.name: one for one in (*self._passes, *named)}.values())
        )

    @property
    def _passes(self) -> tuple[PassChoice, ...]:
        """The passes that are named apart from the text of the buckets; raises ``PlanError`` if there is none."""
        return tuple(PassChoice.read(text) for text in self.passes.split(";") if text.strip())

    def _made(self) -> StepPicture:
        """Return the picture of the present choices."""
        try:
            variant, model = self._variant(), self._cost_model()
            planner, plan = variant.planner(model), self._plan(self.wrapping)
            plan.check(variant.names)
            passed = variant.passed(plan, self.registrations)
            found = timeline(passed.graph, planner.costs, self._streams, planner.state_bytes)
            return picture_of(
                planner, plan, found, streams=self._streams, limit=self._limit(), passes=passed.lines,
                about=self._about(variant), note=self._note(variant),
            )  # fmt: skip
        except PathwaysError as refused:
            return StepPicture(error=str(refused))

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
        if self.wrapping == "searched" and self._searched_for != self._for:
            return "The plan was searched for other choices: search again."
        return " ".join(self._said) if self.wrapping == "searched" else ""

    # ---- what follows from a choice

    def _typed(self, change: Any) -> None:
        """Choose the buckets that were typed."""
        if change["new"]:
            self.wrapping = "own"

    def _wrapped(self, change: Any) -> None:
        """Begin with the buckets of before if the user's own are chosen; search if that was not done yet."""
        if change["new"] == "own" and not self.buckets:
            try:
                self.buckets = self._variant().text(self._plan(change["old"]))
            except PathwaysError:  # there were none
                return
        if change["new"] == "searched" and self._searched == "":
            self.search()

    def _ipython_display_(self) -> None:
        from pathways_widgets.explorers.step_controls import display_explorer

        display_explorer(self)

    def __repr__(self) -> str:
        return repr(self.picture)


def explore_fsdp(step: FsdpStep, batch: Sequence[Any] | None = None, chip: Any = None, **choices: Any) -> FsdpExplorer:
    """Return an explorer of a step's plan: controls as the last expression of a cell, attributes from Python.

    It shows the buckets, the step of one device in simulated time, exposed communication beside its bound, and memory.
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
    for name in choices:
        if name not in CHOICES:
            raise UsageError(f"explore_fsdp: there is no {name!r} to choose; all: {', '.join(CHOICES)}.")
    return FsdpExplorer(Variants(step, batch, chip), **choices)
