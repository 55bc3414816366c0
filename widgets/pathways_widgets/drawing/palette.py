"""Every colour of the project: kinds of events, places, clients, and the light and dark themes.

Event colours are Okabe and Ito's without black; their dark blue is replaced by a light grey because dark text on it
would fall under a contrast of 4.5:1. Work on devices has capital letters, the controller's work has small ones:
a hue may stand for one kind of each, in different lanes, never for two kinds of the same lane.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Theme = Literal["light", "dark"]

SKY, ORANGE, GREEN, PURPLE = "#56B4E9", "#E69F00", "#009E73", "#CC79A7"
YELLOW, VERMILION, BLUE, GREY = "#F0E442", "#D55E00", "#0072B2", "#C8C8C8"

WHITE = "#FFFFFF"
INK = "#111111"
"""Text on any coloured box, in both themes."""


class EventStyle(NamedTuple):
    """How one category of events is drawn: the word for it, its letter, its colour, and a pattern (see ``HATCHES``).

    Kinds of one lane that are alike in grey differ in their pattern.
    """

    name: str
    letter: str
    colour: str
    pattern: str = ""


DEVICE_KINDS = (
    EventStyle("compute", "F", SKY),
    EventStyle("backward", "B", GREEN),
    EventStyle("collective", "C", ORANGE, "upright"),
    EventStyle("transfer", "T", PURPLE),
)
CONTROLLER_KINDS = (
    EventStyle("trace", "r", PURPLE, "level"),
    EventStyle("lower", "l", YELLOW),
    EventStyle("compile", "c", ORANGE, "upright"),
    EventStyle("enqueue", "e", SKY),
    EventStyle("wait", "w", GREY),
    EventStyle("stall", "s", VERMILION, "level"),
    EventStyle("fetch", "f", GREEN),
)
KINDS = DEVICE_KINDS + CONTROLLER_KINDS
"""What a box can be; its position here is the ``code`` of a box. ``backward`` is compute of a backward pass."""

CODES = {kind.name: code for code, kind in enumerate(KINDS)}


class ActionStyle(NamedTuple):
    """What a pipeline schedule does with a stage: the word, its letter, its colour, and its palest shade."""

    name: str
    letter: str
    colour: str
    palest: str


OPERATIONS = (
    ActionStyle("forward", "F", SKY, "#BDE7FF"),
    ActionStyle("gradient by the input", "I", PURPLE, "#E4B8C8"),
    ActionStyle("gradient by the weights", "W", YELLOW, "#EBF2C2"),
    ActionStyle("both gradients", "B", GREEN, "#86B352"),
)
"""In the order of their codes; all shades of one can be told from all shades of another."""

MEMORY, EXCESS = "#8FA3B8", VERMILION
"""What a device of a pipeline keeps, and what of it is above the cap."""

BACKWARD_SUFFIX = "(bwd)"
"""Ends the name of a backward computation."""

PLACES = (SKY, ORANGE, GREEN, VERMILION, PURPLE, BLUE, YELLOW)
"""Outlines of virtual slices, in the order in which their names were first drawn; they repeat after seven."""

CLIENTS = (BLUE, VERMILION, YELLOW, ORANGE, PURPLE, GREEN, SKY)
"""Strips and shares of clients, by name: first those that stand for no work on devices."""

NEUTRAL = "#8A8A8A"
"""Outline of arguments and results, which have no place, and of edges within a place."""

TRANSFER = PURPLE
"""Edges that cross a network."""

NEEDED = GREEN
"""Tab of a node for whose value Python stopped; the timeline shows it as a fetch."""

BOX_EDGE = "#3A3A3A"
"""Thin line around an event's box where it is wide enough."""

HATCHES = {"draining": "/", "failed": "x", "upright": "|", "level": "-"}
"""Patterns over boxes: by the status of an event that did not end well, and by ``EventStyle.pattern``."""

HATCH_ALPHA = 0.35
"""How dark they are."""

THEMES: dict[Theme, dict[str, str]] = {
    "light": {
        "background": WHITE,
        "text": "#222222",
        "soft": "#5A5A5A",
        "grid": "#E4E4E4",
        "lane": "#D0D0D0",
        "island": "#8A8A8A",
    },
    "dark": {
        "background": "#111111",
        "text": "#E8E8E8",
        "soft": "#ABABAB",
        "grid": "#2A2A2A",
        "lane": "#3C3C3C",
        "island": "#8A8A8A",
    },
}


def code_of(kind: str, name: str) -> int:
    """The code of an event's box: its kind, or ``backward`` for a computation named as one."""
    return CODES["backward" if kind == "compute" and name.endswith(BACKWARD_SUFFIX) else kind]


def pale(colour: str) -> str:
    """A light tint of ``colour``, on which ink can be read."""
    return _between(colour, WHITE, 0.6)


def shade(operation: int, part: float) -> str:
    """The colour of an operation, ``part`` of the way to its palest shade."""
    return _between(OPERATIONS[operation].colour, OPERATIONS[operation].palest, part)


def channels(colour: str) -> tuple[int, int, int]:
    """Red, green and blue, of 255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _between(one: str, other: str, part: float) -> str:
    both = zip(channels(one), channels(other), strict=True)
    return "#" + "".join(f"{round((1 - part) * a + part * b):02X}" for a, b in both)


def place_colour(position: int) -> str:
    """The colour of the place at this position among all places drawn."""
    return PLACES[position % len(PLACES)]


def client_colour(position: int) -> str:
    """The colour of the client at this position among all clients of a run; they repeat after seven."""
    return CLIENTS[position % len(CLIENTS)]


def themed(roles: dict[str, dict[str, str]]) -> dict[str, dict[str, dict[str, str]]]:
    """Theme -> model name -> property -> colour, from model name -> property -> role in ``THEMES``."""
    return {
        theme: {name: {prop: colours[role] for prop, role in values.items()} for name, values in roles.items()}
        for theme, colours in THEMES.items()
    }
