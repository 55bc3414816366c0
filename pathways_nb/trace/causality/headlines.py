"""The sentence above a picture: what matters in it, in words that need no other.

All such sentences are made here; the numbers behind them are in ``metrics`` and ``breakdown``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from pathways_nb.trace.causality.breakdown import Idle, idle
from pathways_nb.trace.matching import share_names
from pathways_nb.trace.metrics import BUSY, duration, makes_span
from pathways_nb.trace.record import Events
from pathways_nb.trace.summary import summarise
from pathways_nb.trace.two_records import as_one_record
from pathways_nb.util.words import counted

MOST_EVENTS = 20_000
"""Number of events up to which it is computed why devices were idle: of more, only how busy they were."""
_WORTH_TELLING = 0.1
"""Smallest part of the time that is told as a wait."""
_SAME = 1.03
"""Ratio of two durations below which they count as equal."""
_OTHER_WORK = 1.5
"""Ratio of the numbers of computations of two runs beyond which they are told."""
_WAITS = {
    "transfer": "for transfers",
    "dispatch": "for the controller",
    "call": "for the next program to be called",
    "host": "for the work of its host",
    "memory": "for memory",
    "scheduling": "for its turn among other programs",
    "compile": "for a program to be compiled",
}
"""By cause of ``breakdown``: what an island waits for. Work on devices, the first and last cause, is told apart."""
_OF_A_HOST = "for the calls of its host"
_ELSEWHERE = ("dependency", "warm-up")


def run_headline(events: Events, islands: Sequence[int], finished: bool = True) -> str:
    """Return what matters in a run, in one sentence; empty if nothing ran on devices.

    Args:
        events: of the run.
        islands: number of devices of each island.
        finished: whether it is over; until then it is only said how busy devices are.
    """
    if failure := _failure(events):
        return failure
    if not events.is_("kind", *BUSY).any():
        return ""
    if finished and len(events) <= MOST_EVENTS:
        # A program whose trace tells streams had no controller: its own host sent the work.
        dispatch = _OF_A_HOST if any(label.stream for label in events.labels) else _WAITS["dispatch"]
        if wait := _longest_wait(idle(events, islands), len(islands), dispatch):
            return wait
    return _busy(summarise(events, islands).utilisation, "device is" if sum(islands) == 1 else "devices are")


def comparison_headline(names: Sequence[str], seconds: Sequence[float]) -> str:
    """Return which of two runs or plans is faster, in one sentence; empty if one of them took no time.

    Args:
        names: what to call them.
        seconds: what each takes, in any unit.
    """
    if min(seconds) <= 0:
        return ""
    fast, slow = (names[i] for i in np.argsort(seconds, kind="stable"))
    ratio = max(seconds) / min(seconds)
    if ratio < _SAME:
        return f"{names[0]} and {names[1]} take the same time"
    return f"{fast} is {_times(ratio)} times as fast as {slow}"


def runs_headline(
    names: Sequence[str], records: Sequence[Events], seconds: Sequence[float], same_ops: bool = False
) -> str:
    """Return which of two runs is faster, in one sentence; of one in which something failed, what did.

    Args:
        names: what to call them.
        records: the events of each.
        seconds: what each takes.
        same_ops: whether operations inside launches of both are the same, whatever their events are called.
    """
    failures = [
        f"{name}: {failure}" for name, events in zip(names, records, strict=True) if (failure := _failure(events))
    ]
    if failures:
        # What ends early because it failed is not faster.
        return "; ".join([*failures, "neither run is called faster"])
    said = comparison_headline(names, seconds)
    if not said or same_ops:
        return said
    if not share_names(*records):
        return f"{said}, but they do not do the same work"
    fast = int(seconds[1] < seconds[0])
    return f"{said}{_more_work(records[fast], records[1 - fast])}"


def rerun_headline(last: Events, now: Events) -> str:
    """Return what has changed in a cell since its last run, in one sentence; empty if one of both took no time.

    Args:
        last: events of the last run.
        now: those of this one.
    """
    spans = (events.select(makes_span(events)) for events in (last, now))
    before, after = (float(span["end"].max(initial=0.0) - span["start"].min(initial=np.inf)) for span in spans)
    if min(before, after) <= 0:
        return ""
    ratio = max(before, after) / min(before, after)
    other = _more_work(now, last) if share_names(last, now) else ", but does other work"
    if ratio < _SAME:
        return f"As fast as last time{other}"
    how = f"{_times(ratio)} times as fast as" if after < before else f"Takes {_times(ratio)} times as long as"
    most = _most_changed(last, now, after - before)
    return f"{how} last time{': ' if most else ''}{most}{other}"


def sweep_headline(seconds: Mapping[str, float]) -> str:
    """Return which point of a sweep is fastest, and by how much, in one sentence; empty if there is one point only.

    Args:
        seconds: what each point takes, by what it is called.
    """
    fast, slow = min(seconds, key=seconds.__getitem__), max(seconds, key=seconds.__getitem__)
    if len(seconds) < 2 or seconds[fast] <= 0:
        return ""
    ratio = seconds[slow] / seconds[fast]
    if ratio < _SAME:
        return f"All {len(seconds)} take the same time"
    return f"{fast} is fastest, {_times(ratio)} times as fast as {slow}"


def schedule_headline(name: str, idle_share: float) -> str:
    """Return what a schedule leaves unused, in one sentence.

    Args:
        name: what to call it.
        idle_share: idle time of all devices over all their time.
    """
    idle = _percent(idle_share)
    return (
        f"{name} leaves devices idle {idle} of the time" if idle != _percent(0.0) else f"{name} leaves no device idle"
    )


def _failure(events: Events) -> str:
    """Return what failed first, and how much more, in words; empty if nothing failed."""
    failed = np.flatnonzero(events.is_("status", "failed"))
    if not len(failed):
        return ""
    label = events.labels[int(events.label[failed[0]])]
    where = f" on island {label.island}" if label.island >= 0 else ""
    more = f", and {counted(len(failed) - 1, 'more event')} failed" if len(failed) > 1 else ""
    return f"{label.name} failed{where}{more}"


def _most_changed(last: Events, now: Events, longer: float) -> str:
    """Return what made most of the difference of two runs, in words; empty if nothing made a large part of it."""
    both = as_one_record(last, now, 0)
    # (name, whether it is the time before it) -> how many seconds more it takes now than the last time.
    change: defaultdict[tuple[str, bool], float] = defaultdict(float)
    names = both["name"]
    for is_before, seconds in ((False, both.surplus.within), (True, both.surplus.before)):
        for row in np.flatnonzero(seconds).tolist():
            change[names[row], is_before] += float(seconds[row] if row >= both.of_first else -seconds[row])
    # Only what goes the same way as the whole can be a reason for it.
    (name, is_before), most = max(change.items(), key=lambda one: one[1] * np.sign(longer), default=(("", False), 0.0))
    if most * longer <= 0 or abs(most) < _WORTH_TELLING * abs(longer):
        return ""
    less = f"{duration(abs(most))} {'more' if longer > 0 else 'less'}"
    return f"{less} waiting before `{name}`" if is_before else f"`{name}` takes {less}"


def _more_work(one: Events, other: Events) -> str:
    """Return how many computations one record has in place of another's, in words; empty for about as many."""
    counts = [int(np.count_nonzero(events.is_("kind", "compute"))) for events in (one, other)]
    if max(counts) <= _OTHER_WORK * min(counts):
        return ""
    return f", with {counted(counts[0], 'computation')} instead of {counts[1]}"


def _times(ratio: float) -> str:
    """Return a ratio with as many digits as tell it from 1."""
    return f"{ratio:.2f}" if ratio < 1.2 else f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def _longest_wait(found: Idle, islands: int, dispatch: str) -> str:
    """Return who waits for the largest part of the time, and for what; empty if nobody waits for long.

    Args:
        found: the time of every device, by cause.
        islands: number of islands.
        dispatch: for whom devices wait that wait for their dispatch, in words.
    """
    # (island, cause) -> part of the time of the island's devices.
    parts: defaultdict[tuple[int, str], float] = defaultdict(float)
    devices: Counter[int] = Counter()
    for one in found.devices:
        devices[one.island] += one.devices
        for cause, seconds in one.seconds.items():
            parts[one.island, _ELSEWHERE[0] if cause in _ELSEWHERE else cause] += one.devices * seconds
    if not found.span:
        return ""
    told = {
        (island, cause): seconds / devices[island] / found.span
        for (island, cause), seconds in parts.items()
        if cause in (*_WAITS, _ELSEWHERE[0], "drain")
    }
    (island, cause), part = max(told.items(), key=lambda one: one[1], default=((0, ""), 0.0))
    if part < _WORTH_TELLING:
        return ""
    who = f"Island {island}" if islands > 1 else "The island"
    if cause == "drain":
        return f"{who} has nothing left to do in the last {_percent(part)} of the time"
    waits = {**_WAITS, "dispatch": dispatch}
    others = {1: "work on its other devices", 2: f"island {1 - island}"}.get(islands, "other islands")
    return f"{who} waits {_percent(part)} of the time {waits.get(cause, f'for {others}')}"


def _busy(shares: Sequence[float], devices: str) -> str:
    """Return how busy islands are; of a single one, what its devices are called and do."""
    if len(shares) == 1:
        return f"The {devices} busy {_percent(shares[0])} of the time"
    if max(shares) - min(shares) < 0.05 or len(shares) > 2:
        who = "Both islands are" if len(shares) == 2 else f"{counted(len(shares), 'island')} are"
        return f"{who} busy {_percent(sum(shares) / len(shares))} of the time"
    used = [island for island, share in enumerate(shares) if share]
    if len(used) == 1:
        return f"Island {used[0]} is busy {_percent(shares[used[0]])} of the time, and the other has nothing to do"
    return f"Island 0 is busy {_percent(shares[0])} of the time, island 1 {_percent(shares[1])}"
