"""``run.steps()``: the decisions of a run's controller, and the player that shows one at a time beside the timeline.

A list of decisions is a list, for a script. At the end of a cell it shows itself as an explorer, whose player is the
one of the schedules: its steps are decisions, and what it points at is what was enqueued.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

import traitlets as t

from pathways_nb.controller.decisions import Decision
from pathways_nb.plan.call_numbers import call_number
from pathways_nb.results.explorer_base import Explorer
from pathways_nb.results.named_runs import expression_of
from pathways_nb.trace.metrics import duration
from pathways_nb.util.displaying import ShowsItself, shows_figures
from pathways_nb.util.words import counted, visible

if TYPE_CHECKING:
    from pathways_widgets.drawing.scene import Scene
    from pathways_widgets.drawing.views import RunLike
    from pathways_widgets.figures.decision_figure import DecisionFigure

ANY = "any"
_NOBODY = "no client"
Rows = Sequence[Sequence[str]]
"""The cells of a table, row by row."""


class Decisions(ShowsItself, list[Decision]):
    """What a run's controller decided, in the order of time; at the end of a cell, a player of it.

    Args:
        found: the decisions.
        run: whose they are.
        began: when the recording began, in seconds of the controller's clock.
        missing: number of the recording's first events, which its log has forgotten, with what was decided at them.
    """

    def __init__(self, found: Iterable[Decision], run: RunLike, began: float = 0.0, missing: int = 0):
        super().__init__(found)
        self.run, self.began, self.missing = run, began, missing

    def explore(self) -> DecisionExplorer:
        """Return the player, whose ``step``, ``rule`` and ``client`` can be set from Python, too."""
        return DecisionExplorer(self)

    def show(self, choices: Mapping[str, str] | None = None, at: str = "") -> None:
        """Show the player in the current cell; a script prints what ``repr`` says.

        Args:
            choices: the ``rule``, the ``client`` and the ``step`` that it opens with, as text.
            at: where its figure opens, as for ``run.show``.

        Raises:
            ValueError: there is no such rule or client.
        """
        player = self.explore()
        player.open_at(choices or {}, at)
        if shows_figures():
            player.show()
        else:
            sys.stdout.write(f"{self!r}\n")

    @property
    def forgotten(self) -> str:
        """What the log no longer knows, in words; empty if it knows all."""
        if not self.missing:
            return ""
        return f"the decisions at the first {counted(self.missing, 'event')} of the recording are forgotten"

    def __repr__(self) -> str:
        rules = dict.fromkeys(one.rule for one in self)
        parts = [f"{sum(one.rule == rule for one in self):,} by rule {rule!r}" for rule in rules]
        said = [f"{counted(len(self), 'decision')} of run {self.run.name!r}", *parts, *filter(None, [self.forgotten])]
        return f"<{'; '.join(said)}>"


class DecisionExplorer(Explorer[list[int]]):
    """The decisions of a run, one at a time, forward and back, beside the timeline of the run.

    Args:
        decisions: of the run.
    """

    rule = t.Unicode(ANY, help="Step only to the decisions by this rule").tag(
        group="decisions", options="rules", width=12
    )
    client = t.Unicode(ANY, help="Step only to the decisions about calls of this client").tag(
        group="decisions", options="clients", width=12
    )
    step = t.Int(0, help="Number of the decision, in the order of time; 0 for none").tag(steps="steps")
    notes: ClassVar[dict[str, str]] = {"decisions": "step to these only"}

    def __init__(self, decisions: Decisions):
        self.decisions = decisions
        self._at, self._opens_at = 0, ""
        super().__init__(step=min(len(decisions), 1))

    def open_at(self, choices: Mapping[str, str], at: str = "") -> None:
        """Set the step and what is stepped to, and where the figure opens; see ``Decisions.show``."""
        try:
            for name in ("rule", "client"):
                setattr(self, name, choices.get(name, ANY))
        except t.TraitError as refused:
            raise ValueError(f"at: {refused}.") from None
        self.step = min(int(choices.get("step", self.step)), self.steps)
        self._opens_at = at

    @property
    def view(self) -> str:
        """The step, and what is stepped to, as a part of what "copy this view" gives."""
        chosen = {name: getattr(self, name) for name in ("rule", "client") if getattr(self, name) != ANY}
        return urlencode({"step": self.step, **chosen})

    @property
    def rules(self) -> tuple[str, ...]:
        """What can be chosen as ``rule``: those that decided something."""
        return (ANY, *dict.fromkeys(one.rule for one in self.decisions))

    @property
    def clients(self) -> tuple[str, ...]:
        """What can be chosen as ``client``."""
        return (ANY, *dict.fromkeys(one.client or _NOBODY for one in self.decisions))

    @t.validate("rule", "client")
    def _known(self, proposal: Any) -> str:
        known = self.rules if proposal["trait"].name == "rule" else self.clients
        if proposal["value"] not in known:
            raise t.TraitError(f"{proposal['trait'].name}={proposal['value']!r}: choose one of {', '.join(known)}")
        return str(proposal["value"])

    @t.observe("step")
    def _moved(self, change: Any) -> None:
        if self.step and self._result:
            self._at = self._result[min(self.step, self.steps) - 1]

    @t.observe("rule", "client")
    def _chosen(self, change: Any) -> None:
        """Go to the first decision from here on that is shown, or the last before."""
        at = self._at
        self.step = min(sum(one < at for one in self._result) + 1, self.steps)
        self._at = at  # where the user was: a choice that is taken back leads there again

    def _compute(self) -> list[int]:
        """Return the positions of the decisions to which the player steps."""
        return [
            at
            for at, one in enumerate(self.decisions)
            if self.rule in (ANY, one.rule) and self.client in (ANY, one.client or _NOBODY)
        ]

    @property
    def steps(self) -> int:
        """Number of decisions to which the player steps."""
        return len(self._result)

    @property
    def pointed(self) -> Decision | None:
        """The decision of the current step; None at step 0."""
        at = min(self.step, self.steps) - 1
        return self.decisions[self._result[at]] if at >= 0 else None

    @property
    def drawn(self) -> tuple[Any, ...]:
        """The arguments of the figure's ``draw``: the run, and the decision of the current step."""
        return self.decisions.run, self.pointed

    @property
    def summary(self) -> str:
        """Which step this is, and what the log has forgotten."""
        if self.pointed is None:
            said = f"{counted(self.steps, 'decision')}, in the order of time" if self.steps else "No such decision"
        else:
            said = f"Decision {self._result[min(self.step, self.steps) - 1] + 1:,} of {len(self.decisions):,}"
            said += (
                f", {min(self.step, self.steps):,} of {self.steps:,} here" if self.steps < len(self.decisions) else ""
            )
        return f"{said}; {self.decisions.forgotten}." if self.decisions.forgotten else f"{said}."

    @property
    def words(self) -> str:
        """What was ready, what the policy saw and chose, which rule decided, and what waits for what."""
        return "\n\n".join("\n".join(aligned(rows)) for rows in self.told)

    @property
    def told(self) -> list[Rows]:
        """The same as tables: the cells of each row."""
        return [] if self.pointed is None else tables_of(self.pointed, self.decisions.began)

    def make_figure(self) -> DecisionFigure:
        """Return the live figure of the run."""
        from pathways_widgets.figures.decision_figure import DecisionFigure

        figure = DecisionFigure(self.decisions.run)
        figure.offer_view(f'{expression_of(self.decisions.run)}.show(at="', self._opens_at)
        self.observe(lambda _: setattr(figure, "view_beside", self.view), ["step", "rule", "client"])
        figure.view_beside = self.view
        return figure

    def scene(self, width: float = 900.0) -> Scene:
        """Return the run's timeline and the current decision as shapes, for a page of so many pixels."""
        from pathways_widgets.figures.decision_figure import scene_of_decisions

        return scene_of_decisions(self.decisions.run, (self.pointed,), self.told, width=width)

    def __repr__(self) -> str:
        return "\n".join([repr(self.decisions), *([] if self.pointed is None else [str(self.pointed)])])


def tables_of(decision: Decision, began: float) -> list[Rows]:
    """Return a decision in words: what happened, what was ready, what the policy saw, what waits; a table for each.

    Args:
        decision: what is told.
        began: when the recording began, in seconds of the controller's clock.
    """
    now = decision.at + began
    found: list[Rows] = [[("happened", decision.event), ("chosen", decision.chosen), ("rule", decision.why)]]
    ready = [
        (
            "→" if gang.serial == decision.serial else "",
            f"{gang.name or 'a computation'} of {gang.program}, run {call_number(gang.serial)}",
            gang.client or _NOBODY,
            str(gang.devices),
            "unknown" if gang.expected_seconds is None else duration(gang.expected_seconds),
            duration(max(now - gang.waiting_since, 0.0)),
        )
        for gang in decision.ready
    ]
    found += [[("", "ready", "client", "devices", "takes", "called before"), *ready]] if ready else []
    if (seen := decision.seen) is not None:
        accounts = [
            (name, duration(used), f"{seen.shares[name]:g}", f"{seen.priorities[name]:g}", f"{seen.passed[name]:.6g}")
            for name, used in ((name or _NOBODY, used) for name, used in seen.device_seconds.items() if name)
        ]
        found.append([("the policy saw", "device_seconds", "share", "priority", "passed"), *accounts])
    alike: dict[tuple[str, str, str], list[int]] = {}
    for one in decision.waiting:
        alike.setdefault((one.program, one.client, one.why), []).append(one.call)
    waits = [
        (f"{program}, run {first}{f' and {len(more)} more' if more else ''}", client or _NOBODY, why)
        for (program, client, why), (first, *more) in alike.items()
    ]
    found.append([("waits", "client", "for"), *waits] if waits else [("nothing else waits",)])
    # A name may have the end of a line in it, and a row of a table is one line.
    return [[tuple(map(visible, row)) for row in rows] for rows in found]


def aligned(rows: Rows) -> list[str]:
    """Return rows whose columns begin below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
