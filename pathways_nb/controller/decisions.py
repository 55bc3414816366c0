"""What the controller decided in a run, one decision at a time, and why.

Nothing of this is kept while programs run. The core decides by its state, an event and a time alone, so its log lets it
make the same choices again; what it could choose from is read from its state just before each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from pathways_nb.controller.events_and_instructions import (
    Added,
    Cancelled,
    Closed,
    Completed,
    Event,
    Instruction,
    Occupied,
    Opened,
    PutRequested,
    Released,
    Removed,
    Submitted,
    Voided,
)
from pathways_nb.controller.log import Log, Replay
from pathways_nb.controller.policies import PolicyState, ReadyGang
from pathways_nb.controller.scheduler import (
    CANDIDATES,
    Choice,
    PolicyFailed,
    ShortOfMemory,
    as_shown,
    has_capacity,
    is_contended,
    ready_gangs,
)
from pathways_nb.controller.state import CallState
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.errors import UsageError, duration, size
from pathways_nb.plan.call_numbers import call_number
from pathways_nb.plan.plan import Gang
from pathways_nb.util.words import counted, visible

_RULES = {
    "cancelled": "it is cancelled or has failed, and is enqueued at once to be skipped",
    "alone": "no other client has work: the whole program goes to all its islands at once",
    "sequential": "nothing is in flight, and under sequential dispatch one computation goes at a time",
    "only": "nothing else could be enqueued there",
    "policy": "the policy chose it",
    "memory": "it lacks memory, and others are asked",
    "failed": "the policy failed",
}


@dataclass(frozen=True)
class WaitingCall:
    """A call that was not chosen.

    Args:
        call: its number, as pictures and errors show it.
        program: name of the program.
        client: who called it; empty for no client in particular.
        why: what it waits for, in words.
    """

    call: int
    program: str
    client: str
    why: str


@dataclass(frozen=True)
class Decision:
    """One choice of the controller: what takes the next places in the order of its islands.

    Args:
        at: when, in seconds since the recording began, as events are.
        event: what had happened, in words.
        rule: which rule decided: "cancelled", "alone", "sequential", "only", "policy", "memory" or "failed"; in words:
            ``why``.
        call: number of the call that was chosen; of the first, if it is about several.
        program: name of its program.
        client: who called it; empty for no client in particular.
        enqueued: by island, the names of the computations that were enqueued; empty if none was.
        ready: what could be chosen from, as a policy sees it; one entry if there was no choice.
        waiting: other calls, the oldest few of each client, with what each waits for.
        serial: the call's number among those of all kernels that share the controller, which events have as ``run``.
        nodes: by island, the nodes of the program's graph that were enqueued.
        seen: what the policy could read of the clients besides; None where it was not asked.
    """

    at: float
    event: str
    rule: str
    call: int
    program: str
    client: str
    enqueued: dict[int, tuple[str, ...]]
    ready: tuple[ReadyGang, ...]
    waiting: tuple[WaitingCall, ...]
    serial: int
    nodes: dict[int, tuple[int, ...]]
    seen: PolicyState | None = None

    @property
    def why(self) -> str:
        """The rule that decided, in words."""
        if self.rule == "policy":
            return f"the policy chose it of {counted(len(self.ready), 'computation')}"
        return _RULES[self.rule]

    @property
    def chosen(self) -> str:
        """What takes the next places, in words."""
        what = [
            f"{f'`{name}`' if name and not more else counted(1 + len(more), 'computation')} on island {island}"
            for island, (name, *more) in self.enqueued.items()
        ]
        whose = f" of {self.client}" if self.client else ""
        return visible(f"{self.program}, run {self.call}{whose}: {', '.join(what) or 'nothing'}")

    def __str__(self) -> str:
        chosen = f"{self.chosen} ({self.why})"
        others = [
            f"  {each.program}, run {each.call}{f' of {each.client}' if each.client else ''}, waits: {each.why}"
            for each in self.waiting
        ]
        return "\n".join(map(visible, [f"{duration(self.at)}, {self.event}: {chosen}", *others]))


def decisions(log: Log, began: float = 0.0) -> Iterator[Decision]:
    """Yield the decisions of a log's recording, in order.

    Args:
        log: the log.
        began: when the recording began, in seconds of the controller's clock.

    Raises:
        UsageError: the log cannot be played again, or the core answers otherwise now.
    """
    core, replay = WatchedCore.at_beginning(log, began)
    for _ in replay:
        yield from core.found
        core.found.clear()


class WatchedCore(StateMachine):
    """A core that notes what it decides."""

    found: list[Decision]
    _began: float
    _event: Event
    _is_watched: bool

    @classmethod
    def at_beginning(cls, log: Log, began: float) -> tuple[WatchedCore, Replay]:
        """Return a core in the state in which a log's recording began, and what plays the recording on it.

        What came before the recording has been played as it was, and is not noted.

        Raises:
            UsageError: as ``Log.replay``.
        """
        core = object.__new__(cls)
        vars(core).update(vars(log.snapshot.machine()), found=[], _began=began, _is_watched=False)
        replay = log.replay(core)
        deque(islice(replay, log.before), maxlen=0)
        core._is_watched = True
        return core, replay

    @property
    def wake_at(self) -> float | None:
        """When it asked to be told that time has passed; ``None`` if it does not wait for that."""
        return self._wake

    def handle(self, event: Event, now: float = 0.0) -> list[Instruction]:
        """Apply one event, and note it for what is decided then."""
        self._event = event
        return super().handle(event, now)

    def choose(self, now: float) -> Choice | PolicyFailed | ShortOfMemory | None:
        """Return what to enqueue next, and note it."""
        choice = super().choose(now)
        if choice is not None and self._is_watched:
            self.found.append(_decision(self, choice, now, _words(self._event), now - self._began))
        return choice


def log_or_error(log: Log | None) -> Log:
    """Return a run's log.

    Raises:
        UsageError: it has none.
    """
    if log is None:
        raise UsageError(
            "this run has no log of its controller: it still goes on, its controller is another process's or was "
            "attached anew meanwhile, or its file is of an older version, a profile or a compiler's dump."
        )
    return log


def _words(event: Event) -> str:
    match event:
        case Submitted(run):
            return f"run {call_number(run)} is called"
        case Completed(run, island):
            return f"island {island} has done a part of run {call_number(run)}"
        case Cancelled():
            return "calls are cancelled"
        case Voided():
            return "computations have failed"
        case Released():
            return "values are let go"
        case Opened(client) | Closed(client):
            return f"{client} is {'opened' if isinstance(event, Opened) else 'closed'}"
        case Added(island):
            return f"island {island} is added, or its devices are back"
        case Removed(where):
            return f"{where} is lost"
        case Occupied(island, count):
            return f"others hold {size(count)} of each device of island {island}"
        case PutRequested(_, client):
            return f"{client or 'no client'} asks for memory"
    return "time has passed"


def _decision(
    state: StateMachine, choice: Choice | PolicyFailed | ShortOfMemory, now: float, event: str, at: float
) -> Decision:
    """Return what is about to be carried out after an event, read from the state before it."""
    if isinstance(choice, Choice):
        call, gangs, rule = choice.call, choice.gangs, _rule(state, now)
    elif isinstance(choice, ShortOfMemory):
        call, gangs, rule = next(iter(choice.calls)), {}, "memory"
    else:
        call, gangs, rule = state.calls[next(iter(choice.calls))], {}, "failed"
    ready = [] if rule in ("cancelled", "alone") else _ready(state)
    if rule == "policy" and len(ready) == 1:
        rule = "only"
    # Of several that could be the one computation that goes, the policy chooses under sequential dispatch, too.
    if rule == "sequential" and len(ready) > 1:
        rule = "policy"
    names = {island: _names(call, group) for island, group in gangs.items()}
    nodes = {island: tuple(gang.node for gang in group) for island, group in gangs.items()}
    # Copies: what a policy reads are the accounts themselves, which go on.
    seen = PolicyState(now, *map(dict, state.of_clients)) if rule == "policy" else None
    shown = tuple(ready) or tuple(as_shown(call, group[0]) for group in islice(gangs.values(), 1))
    of, name = call.submitted, call.plan.graph.name
    waiting = tuple(_waiting(state, call))
    return Decision(
        at, event, rule, call_number(of.run), name, of.client, names, shown, waiting, of.run, nodes, seen
    )  # fmt: skip


def _rule(state: StateMachine, now: float) -> str:
    """Return by which rule of ``scheduler.choose`` something is enqueued."""
    if state.given_up:
        return "cancelled"
    if state.dispatch == "sequential":
        return "sequential"
    return "policy" if is_contended(state, now) else "alone"


def _ready(state: StateMachine) -> list[ReadyGang]:
    return [as_shown(state.calls[serial], gang) for serial, gang in ready_gangs(state, {}).items()]


def _names(call: CallState, gangs: Sequence[Gang]) -> tuple[str, ...]:
    names = call.plan.graph.names
    return tuple(names.get(gang.node, "") for gang in gangs)


def _waiting(state: StateMachine, chosen: CallState) -> Iterator[WaitingCall]:
    """Yield the oldest calls of each client that are not chosen."""
    for client, calls in state.waiting.items():
        for call in islice(calls.values(), CANDIDATES):
            if call is not chosen:
                number, name = call_number(call.submitted.run), call.plan.graph.name
                yield WaitingCall(number, name, client, _why_it_waits(state, call))


def _why_it_waits(state: StateMachine, call: CallState) -> str:
    if (waits := state.admission.blocked.get(call)) is not None:
        return waits.reason
    if call.behind:
        first = min(call.behind)
        more = f" and {len(call.behind) - 1} more" if len(call.behind) > 1 else ""
        return f"run {call_number(first)}{more}, whose values it reads or takes over, must be enqueued before it"
    left = [island for island, gangs in call.plan.gangs.items() if call.next_gang[island] < len(gangs)]
    ready = [island for island in left if call.next_on(island) is not None]
    if not any(has_capacity(state, island) for island in ready):
        return f"enough is enqueued on {' and '.join(f'island {island}' for island in ready)}"
    if state.in_order and next(iter(state.waiting[call.client].values())) is not call:
        return "its client's earlier calls"
    return "its turn"
