"""Which events a timeline shows: conditions on client, program, place, kind, duration and name, which all must hold.

The browser tests them on boxes (``SEEN``), so they work without a kernel; a box of many merged events is shown if all
conditions hold for one of these, but for durations, of which it has the shortest and the longest. Python tests them on
events.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pathways_nb.errors import is_number
from pathways_nb.trace.metrics import client_name, duration
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import GAUGE_KINDS, Label
from pathways_nb.util.json_text import shortened
from pathways_widgets.drawing.palette import CODES, KINDS, code_of

_LISTS = ("client", "program", "place", "kind")
SEEN = """
    const {data} = boxes, away = new Set(hidden.data.client), known = new Map(), [chosen = {}] = hidden.tags
    const kinds = new Set(swatches.flatMap((swatch, code) => swatch.visible ? [] : [code]))
    const {program = [], place = [], shortest = 0, longest = null, text = ""} = chosen, most = longest ?? Infinity
    const lists = kinds.size + away.size + program.length + place.length
    if (!lists && !shortest && most === Infinity && !text) return null
    const some = (words, all) => !words.length || all.some((one) => words.includes(one))
    const fits = (facts) => {
        if (!facts) return true
        const word = text.toLowerCase()
        return JSON.parse(facts).some(({program: programs, place: places, name}) =>
            some(program, programs) && some(place, places) && name.some((one) => one.toLowerCase().includes(word)))
    }
    const isSeen = (i) => {
        if (kinds.has(data.code[i]) || away.has(data.client[i])) return false
        if (data.longest[i] < shortest || data.shortest[i] > most) return false
        if (!known.has(data.facts[i])) known.set(data.facts[i], fits(data.facts[i]))
        return known.get(data.facts[i])
    }
    return Array.from(source.data.box ?? data.code, (box, i) => isSeen(source.data.box ? box : i))
"""
"""Script of Bokeh's filter of all tables that have a row, or a column ``box``, for each box of a timeline."""


@dataclass(frozen=True, kw_only=True)
class EventFilter:
    """Conditions that an event must fulfil; an empty one is fulfilled by all.

    Args:
        client: names of clients.
        program: names of programs.
        place: names of virtual slices, or of islands as on their lanes, such as ``"island 0"``; ``"controller"``.
        kind: kinds of boxes, as in the legend's order: ``"compute"``, ``"backward"``, ``"collective"``, …
        shortest: least duration, in seconds.
        longest: largest duration, in seconds.
        text: part of the name of what happened; capital and small letters are the same.
    """

    client: tuple[str, ...] = ()
    program: tuple[str, ...] = ()
    place: tuple[str, ...] = ()
    kind: tuple[str, ...] = ()
    shortest: float = 0.0
    longest: float = math.inf
    text: str = ""

    @classmethod
    def of(cls, **conditions: Any) -> EventFilter:
        """Return a filter of conditions as a user writes them: one word or several.

        Raises:
            ValueError: a kind or a condition is unknown or no such value, or no duration can be between both bounds.
        """
        known = [one.name for one in fields(cls)]
        for name in conditions:
            if name not in known:
                raise ValueError(
                    f"{name}: there is no such condition{_near(name, known)}; choose from {', '.join(known)}."
                )
        for name, value in conditions.items():
            if not _IS_GIVEN.get(name, _is_words)(value):
                needed = {"text": "a part of a name", "shortest": "seconds", "longest": "seconds"}.get(name, "names")
                raise ValueError(f"{name}={shortened(value)}: {needed} should stand here.")
        words = {name: conditions[name] for name in _LISTS if name in conditions}
        lists: dict[str, Any] = {name: (one,) if isinstance(one, str) else tuple(one) for name, one in words.items()}
        made = cls(**{**conditions, **lists})
        for kind in made.kind:
            if kind not in CODES:
                raise ValueError(
                    f"kind={kind!r}: no box is of this kind{_near(kind, CODES)}; choose from {', '.join(CODES)}."
                )
        if not made.shortest <= made.longest:
            raise ValueError(
                f"shortest={made.shortest} and longest={made.longest} (seconds): no duration is between them."
            )
        return made

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> EventFilter:
        """Return the filter of a state of the browser."""
        found: dict[str, Any] = {name: words for name, words in state.items() if words is not None}
        found |= {name: tuple(found[name]) for name in _LISTS if name in found}
        return cls(**found)

    @property
    def state(self) -> dict[str, Any]:
        """The same for the browser, which has no infinity."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        lists = {name: list(found[name]) for name in _LISTS}
        return found | lists | {"longest": self.longest if math.isfinite(self.longest) else None}

    def keeps(self, events: Events, islands: Sequence[str] = ()) -> np.ndarray:
        """Return for each event whether it fulfils all conditions.

        Args:
            events: the events.
            islands: names of the islands; empty for numbers.
        """
        # (labels,) a million events have few labels.
        by_label = np.array([self._fits(label, islands) for label in events.labels], bool)
        seconds = events["end"] - events["start"]
        found: np.ndarray = by_label[events.label] & (seconds >= self.shortest) & (seconds <= self.longest)
        return found

    def __str__(self) -> str:
        parts = [f"{name} {' or '.join(words)}" for name in _LISTS if (words := getattr(self, name))]
        parts += [f"at least {duration(self.shortest)}"] if self.shortest else []
        parts += [f"at most {duration(self.longest)}"] if math.isfinite(self.longest) else []
        return ", ".join([*parts, f"name with {self.text!r}"] if self.text else parts)

    def _fits(self, label: Label, islands: Sequence[str]) -> bool:
        if label.kind in GAUGE_KINDS:  # a level, such as memory in use, has no box
            return False
        kind = KINDS[_code(label)].name
        facts = {"client": [client_name(label.client)], "kind": [kind], **facts_of(label, islands)}
        wanted = all(not words or set(words) & set(facts[name]) for name in _LISTS if (words := getattr(self, name)))
        return wanted and self.text.lower() in label.name.lower()


def facts_of(label: Label, islands: Sequence[str]) -> dict[str, list[str]]:
    """Return what the conditions on program, place and name look at."""
    island = label.island
    where = (islands[island] if island < len(islands) else f"island {island}") if island >= 0 else "controller"
    return {"program": [label.program], "place": list(filter(None, (label.place, where))), "name": [label.name]}


def joined(facts: Iterable[Mapping[str, Sequence[str]]]) -> str:
    """Return the facts of several labels as JSON: those of one program and place together, with all their names."""
    names: dict[tuple[tuple[str, ...], ...], dict[str, None]] = {}
    for one in facts:
        # Any condition on program and place holds for all of a group or for none, so a name in it fulfils all.
        group = tuple(one["program"]), tuple(one["place"])
        names.setdefault(group, {}).update(dict.fromkeys(one["name"]))
    return json.dumps([{"program": group[0], "place": group[1], "name": [*found]} for group, found in names.items()])


def is_hidden(events: Events, words: Collection[str]) -> np.ndarray:
    """Return for each event whether its kind or its client, as legends call them, is among some words."""
    # (labels,) a million events have few labels.
    by_label = [
        one.kind not in GAUGE_KINDS and (KINDS[_code(one)].words in words or client_name(one.client) in words)
        for one in events.labels
    ]
    found: np.ndarray = np.array(by_label, bool)[events.label]
    return found


def choices(events: Events, islands: Sequence[str]) -> dict[str, list[str]]:
    """Return the words that conditions on program and place can have, sorted."""
    found: dict[str, dict[str, None]] = {"program": {}, "place": {}}
    for number in np.flatnonzero(np.bincount(events.label)).tolist():
        facts = facts_of(events.labels[number], islands)
        for name, words in found.items():
            words |= dict.fromkeys(filter(None, facts[name]))
    return {name: sorted(words) for name, words in found.items()}


def _is_words(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, Iterable) and all(isinstance(one, str) for one in value))


def _is_seconds(value: object) -> bool:
    return is_number(value) or value == math.inf


_IS_GIVEN: Mapping[str, Callable[[object], bool]] = {
    "text": lambda value: isinstance(value, str),
    "shortest": _is_seconds,
    "longest": _is_seconds,
}
"""What a condition can be; the others are words."""


def _code(label: Label) -> int:
    return code_of(label.kind, label.name)


def _near(word: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(word, list(known), 1, 0.5)
    return f"; did you mean {found[0]!r}?" if found else ""
