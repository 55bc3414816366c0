"""``run.replay(policy)``: what two policies decide on the same calls, as numbers, as text, and played side by side.

Both are simulated in the same way (``runtime.sim.policy_replay``). The player is that of ``run.steps()``: each step is
one decision of each policy, and it opens at the first that differs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import traitlets as t

from pathways_nb.controller.decisions import Decision
from pathways_nb.controller.log import Log
from pathways_nb.controller.policies import Policy
from pathways_nb.errors import UsageError
from pathways_nb.plan.call_numbers import call_number
from pathways_nb.results.decision_explorer import Rows, aligned, tables_of
from pathways_nb.results.explorer_base import Explorer
from pathways_nb.runtime.sim.policy_replay import NodeSeconds, ReplayedCalls
from pathways_nb.trace.metrics import duration
from pathways_nb.trace.record import Events
from pathways_nb.util.displaying import ShowsItself, shows_figures
from pathways_nb.util.words import counted, visible

if TYPE_CHECKING:
    from pathways_widgets.drawing.scene import Scene
    from pathways_widgets.drawing.views import Moment
    from pathways_widgets.figures.decision_figure import DecisionFigure


class Ends(NamedTuple):
    """When one call ended, in seconds since the recording began.

    Args:
        program: its name.
        client: who called it.
        recorded_policy: under the policy of the recording, simulated.
        other_policy: under the other.
    """

    program: str
    client: str
    recorded_policy: float
    other_policy: float


@dataclass(frozen=True)
class PolicyReplay(ShowsItself):
    """What two policies decide on the same calls.

    Args:
        names: of the recorded policy and of the other.
        decisions: of the recorded policy.
        others: of the other policy.
        ends: by call number, of the calls that neither failed nor were cancelled, under either policy.
        missing: number of the recording's first events that its log has forgotten; calls made then have no end here.
        untimed: how often a node is carried out here that was not in the recording; it takes no time.
        events: what devices and hosts do under both; the islands of the other policy follow those of the recorded one.
        islands: number of devices of each island.
        began: when the recording began, in seconds of the controller's clock.
    """

    names: tuple[str, str]
    decisions: tuple[Decision, ...]
    others: tuple[Decision, ...]
    ends: dict[int, Ends]
    missing: int = 0
    untimed: int = 0
    events: Events = field(default_factory=lambda: Events.from_rows([]), repr=False, compare=False)
    islands: tuple[int, ...] = ()
    began: float = 0.0

    @property
    def first_difference(self) -> tuple[Decision | None, Decision | None] | None:
        """The first decision of each that differs in what is enqueued; ``None`` if none does."""
        pairs = zip_longest(self.decisions, self.others)
        return next((pair for pair in pairs if _enqueued(pair[0]) != _enqueued(pair[1])), None)

    @property
    def was_asked(self) -> bool:
        """Whether the other policy had anything to choose from; if not, its code was not called."""
        return any(one.rule == "policy" for one in self.others)

    @property
    def seconds(self) -> tuple[float, float]:
        """When the last call ends, under each."""
        kept = self.ends.values()
        return max((e.recorded_policy for e in kept), default=0.0), max((e.other_policy for e in kept), default=0.0)

    def mean_end(self, client: str) -> tuple[float, float]:
        """Return when a client's calls end on average, under each policy, in seconds since the recording began.

        Raises:
            UsageError: it made no call.
        """
        of_client = [ends for ends in self.ends.values() if ends.client == client]
        if not of_client:
            made = ", ".join(sorted({repr(ends.client) for ends in self.ends.values()})) or "nobody"
            raise UsageError(f"mean_end({client!r}): no such client called; {made} did.")
        befores, afters = zip(*((ends.recorded_policy, ends.other_policy) for ends in of_client), strict=True)
        return sum(befores) / len(befores), sum(afters) / len(afters)

    def explore(self) -> ReplayExplorer:
        """Return the player of both, which opens at the first decision that differs."""
        return ReplayExplorer(self)

    def show(self) -> None:
        """Show the player in the current cell; a script prints what ``str`` says."""
        if shows_figures():
            self.explore().show()
        else:
            sys.stdout.write(f"{self}\n")

    def moment(self) -> Moment:
        """Return what both lead to, as a run that can be drawn: the recorded policy above, the other below."""
        from pathways_widgets.drawing.views import Moment

        one, other = self.names if self.names[0] != self.names[1] else (f"{name} again" for name in self.names)
        names = tuple(f"{name} {island}" for name in (one, other) for island in range(len(self.islands)))
        both = 2 * self.islands
        return Moment(f"{one} above, {other} below", both, names, (0,) * len(both), (), True, self.events, self.told())

    def told(self) -> str:
        """Return when calls end under both, in lines."""
        one, other = self.names
        before, after = map(duration, self.seconds)
        lines = [f"the last call ends after {before} under {one}, {after} under {other} (both simulated)"]
        if not self.was_asked:
            lines.append(f"  {other} was never asked: there was never more than one computation to choose from")
        if self.missing:
            lines.append(f"  without the first {counted(self.missing, 'event')} of the recording, which are forgotten")
        if self.untimed:
            lines.append(f"  {counted(self.untimed, 'node')} took no time here, since the recording has none of them")
        for client in sorted({ends.client for ends in self.ends.values()}):
            was, becomes = map(duration, self.mean_end(client))
            lines.append(f"  {visible(client) or 'no client'}: on average after {was} and {becomes}")
        return "\n".join(lines)

    def __str__(self) -> str:
        lines = [self.told()]
        if self.first_difference is None:
            return "\n".join([*lines, "no decision differs"])
        for name, decision in zip(self.names, self.first_difference, strict=True):
            said = str(decision).partition("\n")[0] if decision else "no more decisions"
            lines.append(f"first difference, {name}: {said}")
        return "\n".join(lines)


class ReplayExplorer(Explorer[list[int]]):
    """The decisions of two policies on the same calls, one of each at a time, beside what they lead to.

    Args:
        replay: what both decided.
    """

    which = t.Enum(("all", "that differ"), "all", help="Step to all decisions, or only to those that differ").tag(
        group="decisions", label="decisions", width=14
    )
    step = t.Int(0, help="Number of the decision of each, in the order of time; 0 for none").tag(steps="steps")
    notes: ClassVar[Mapping[str, str]] = {"decisions": "both simulated; opens at the first that differs"}

    def __init__(self, replay: PolicyReplay):
        self.replay = replay
        self.pairs = list(zip_longest(replay.decisions, replay.others))
        self._differing = [at for at, pair in enumerate(self.pairs) if _enqueued(pair[0]) != _enqueued(pair[1])]
        super().__init__(step=min(self._differing, default=0) + bool(self.pairs))

    @t.observe("which")
    def _chosen(self, change: Any) -> None:
        self.step = min(1, self.steps) if self.which != "all" else min(self._differing, default=0) + bool(self.pairs)

    def _compute(self) -> list[int]:
        """Return the positions of the decisions to which the player steps."""
        return list(range(len(self.pairs))) if self.which == "all" else self._differing

    @property
    def steps(self) -> int:
        """Number of decisions to which the player steps."""
        return len(self._result)

    @property
    def pointed(self) -> tuple[Decision | None, Decision | None]:
        """The decision of each policy at the current step; None where it has none."""
        at = min(self.step, self.steps) - 1
        return self.pairs[self._result[at]] if at >= 0 else (None, None)

    @property
    def drawn(self) -> tuple[Any, ...]:
        """The arguments of the figure's ``draw``: what both policies lead to, and their decisions."""
        return self.replay.moment(), self.pointed

    @property
    def summary(self) -> str:
        """Which step this is, and what ``str`` says of the replay."""
        number = min(self.step, self.steps)
        here = f"Decision {self._result[number - 1] + 1:,} of {len(self.pairs):,}" if number else "No such decision"
        differ = f"{len(self._differing):,} of them differ" if self._differing else "none differs"
        return f"{here}; {differ}.\n{self.replay.told()}"

    @property
    def words(self) -> str:
        """Both decisions in words, one below the other."""
        return "\n\n".join("\n".join(aligned(rows)) for rows in self.told)

    @property
    def told(self) -> list[Rows]:
        """The same as tables: the cells of each row."""
        found: list[Rows] = []
        for name, one in zip(self.replay.names, self.pointed, strict=True):
            found.append([(f"under {name}" if one else f"under {name}: no more decisions",)])
            found += tables_of(one, self.replay.began) if one else []
        return found

    def make_figure(self) -> DecisionFigure:
        """Return the live figure of what both lead to."""
        from pathways_widgets.figures.decision_figure import DecisionFigure

        return DecisionFigure(self.replay.moment(), self.replay.names)

    def scene(self, width: float = 900.0) -> Scene:
        """Return the same as shapes, for a page of so many pixels."""
        from pathways_widgets.figures.decision_figure import scene_of_decisions

        return scene_of_decisions(self.replay.moment(), self.pointed, self.told, self.replay.names, width)

    def __repr__(self) -> str:
        return str(self.replay)


def _enqueued(decision: Decision | None) -> object:
    return decision and (decision.call, decision.enqueued)


def replay_of(log: Log, seconds: NodeSeconds, policy: Policy, names: tuple[str, str], began: float) -> PolicyReplay:
    """Return what the recorded policy and another one decide on a log's calls.

    Args:
        log: of a recording.
        seconds: how long nodes took.
        policy: the other policy.
        names: of both, in words.
        began: when the recording began, in seconds of the controller's clock.

    Raises:
        UsageError: as ``ReplayedCalls``.
    """
    recorded, other = (ReplayedCalls(log, seconds, one, began) for one in (None, policy))
    ends = {
        call_number(serial): Ends(*recorded.called[serial], end - began, other.ends[serial] - began)
        for serial, end in recorded.ends.items()
        if serial in other.ends
    }
    islands = tuple(recorded.machine.devices)
    labels = {label: replace(label, island=label.island + len(islands)) for label in {row.label for row in other.rows}}
    below = [row._replace(label=labels[row.label]) for row in other.rows]
    return PolicyReplay(
        names,
        tuple(recorded.decisions),
        tuple(other.decisions),
        ends,
        log.missing,
        max(recorded.untimed, other.untimed),
        Events.from_rows([*recorded.rows, *below]),
        islands,
        began,
    )
