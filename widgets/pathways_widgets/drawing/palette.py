"""Every colour of the project: kinds of events, virtual slices, clients, and the light and dark themes.

Work on devices has the colours of Okabe and Ito, which people with colour-blindness can tell apart, and a light grey;
work of the controller has others, found by a search for the largest distances (``tests/core/widgets/test_palette.py``
says which are kept). No two kinds have one colour, and no client has that of a kind: kinds are light, so that dark text
on them can be read, and clients are dark. Work on devices and hosts has capital letters, work of the controller small
letters.

Sizes are in ``style``.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Theme = Literal["light", "dark"]

SKY, ORANGE, GREEN, PURPLE = "#56B4E9", "#E69F00", "#009E73", "#CC79A7"
YELLOW, VERMILION, BLUE, GREY = "#F0E442", "#D55E00", "#0072B2", "#C8C8C8"
VIOLET, TAN, PALE_BLUE, SAGE, MINT = "#9977BB", "#CCAA77", "#BBDDFF", "#88AA99", "#66EEBB"

WHITE = "#FFFFFF"
INK = "#111111"
"""Colour of text on any coloured box, in both themes."""


class EventStyle(NamedTuple):
    """How a kind of event is drawn.

    Kinds in one lane that look alike in grey differ in their pattern.

    Args:
        name: the kind, as in the record.
        letter: the letter on the box.
        colour: fill of the box.
        words: what it is, in the legend.
        pattern: a key of ``HATCHES``; empty for none.
    """

    name: str
    letter: str
    colour: str
    words: str
    pattern: str = ""


DEVICE_KINDS = (
    EventStyle("compute", "F", SKY, "computation"),
    EventStyle("backward", "B", GREEN, "backward pass"),
    EventStyle("collective", "C", ORANGE, "collective", "upright"),
    EventStyle("transfer", "T", PURPLE, "transfer"),
    EventStyle("host", "H", GREY, "work of a host", "level"),
)
CONTROLLER_KINDS = (
    EventStyle("trace", "r", VIOLET, "trace", "level"),
    EventStyle("lower", "l", YELLOW, "lower", "upright"),
    EventStyle("compile", "c", TAN, "compile", "upright"),
    EventStyle("enqueue", "e", PALE_BLUE, "enqueue"),
    EventStyle("wait", "w", SAGE, "Python waits"),
    EventStyle("stall", "s", VERMILION, "program waits", "level"),
    EventStyle("fetch", "f", MINT, "fetch a value"),
)
KINDS = DEVICE_KINDS + CONTROLLER_KINDS
"""The kinds of boxes; the position of a kind is its ``code``. ``backward`` is compute of a backward pass."""

CODES = {kind.name: code for code, kind in enumerate(KINDS)}

OPS = {
    **{"op compute": "compute", "op backward": "backward", "op wait": "stall", "op host": "host"},
    **dict.fromkeys(("op copy", "op prefetch", "op dcn"), "transfer"),
    **dict.fromkeys(("op collective", "op gather", "op reduce"), "collective"),
}
"""Kinds of ops inside a launch -> the kind of event that they are drawn like; ``"op backward"`` is computation of a
backward pass."""


class ActionStyle(NamedTuple):
    """How an operation of a pipeline schedule is drawn.

    Args:
        name: the word in the legend.
        letter: the letter on the box.
        colour: fill of the box.
        palest: the palest shade, used for the last chunk, token slice or direction.
    """

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
"""In the order of their codes. No shade of one operation is close to a shade of another."""

MEMORY, EXCESS = "#8FA3B8", VERMILION
"""Colours of the memory that a device of a pipeline holds, and of the part above the cap."""

OTHER_ORDER, LATE = VERMILION, BLUE
"""Outlines of the first action of a run that came in another order than planned (solid), and later (dashed)."""

BACKWARD_SUFFIX = "(bwd)"
"""Suffix of the name of a backward computation."""
ACTION, FORWARD_ACTION = re.compile(r"\d+[FIWB]\d+(\.\d+)?"), re.compile(r"\d+F")
"""Names of the actions of a pipeline, and the beginning of those of forward passes."""

PLACES = (SKY, ORANGE, GREEN, VERMILION, PURPLE, BLUE, YELLOW)
"""Outlines of virtual slices, in the order in which their names were first drawn; they repeat after seven."""

CLIENTS = ("#6677FF", "#668844", "#992255", "#885588", "#662299", "#990000", "#5511FF")
"""Colours of clients, by name; darker than those of kinds. Those that stand out best from both grounds come first."""

DEVICES = (SKY, ORANGE, GREEN, YELLOW, PURPLE, VERMILION)
"""Colours of blocks by the device that holds them; of more devices, neighbours share a hue and differ in lightness."""

CATEGORIES = {
    **{"parameters": BLUE, "optimizer": PURPLE, "gradients": VERMILION, "values": SKY, "results": "#5E5E79"},
    **{"arguments": GREY, "gathered": ORANGE, "activations": GREEN, "intermediates": "#AFE5AF"},
    "temporaries": YELLOW,
}
"""Colours of the categories of memory, in the order in which they are stacked."""

NEUTRAL = "#8A8A8A"
"""Outline of arguments and results, which have no virtual slice, and colour of edges within one."""

TRANSFER = PURPLE
"""Colour of edges that cross a network."""

ARROW = "#A2387C"
"""Colour of the arrow of a transfer: that of transfers, darker, because it crosses boxes of all kinds."""

NEEDED = MINT
"""Tab under a node for whose value Python waited; the same colour as a fetch in the timeline."""

BOX_EDGE = "#3A3A3A"
"""Colour of the thin border of an event's box where the box is wide enough."""

HATCHES = {"draining": "/", "failed": "x", "upright": "|", "level": "-"}
"""Patterns over boxes: by the status of an event that did not end well, and by ``EventStyle.pattern``."""

DASHES = {"estimated": (6, 3), "interpolated": (2, 3)}
"""Lengths in pixels of the dashes and gaps of a box's edge, by the quality of its stamps; others have a solid edge."""

GUESSES = {
    "estimated": "estimated: end seen, start inferred",
    "interpolated": "interpolated: end not watched",
}
"""Words of the legend for the dashed edges."""

HATCH_ALPHA = 0.35
"""Opacity of the patterns."""

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
    """Return the code of the box of an event or op: that of its kind, or ``backward`` for such a computation's name."""
    # A computation is backward by its name: that of autodiff, or of an action of a pipeline that is no forward pass.
    backward = name.endswith(BACKWARD_SUFFIX) or (is_action(name) and not FORWARD_ACTION.match(name))
    backward |= (kind, name) == ("op compute", "backward")
    if (kind, name) == ("op compute", "partial sums"):  # an exchange, for which computation waits
        return CODES["collective"]
    return CODES["backward" if OPS.get(kind, kind) == "compute" and backward else OPS.get(kind, kind)]


def is_action(name: str) -> bool:
    """Return whether a name is that of a pipeline's action, such as ``"2W0"``, which begins with its own letter."""
    return ACTION.fullmatch(name) is not None


def pale(colour: str) -> str:
    """Return a light tint of ``colour`` on which ink can be read."""
    return _between(colour, WHITE, 0.6)


def shade(operation: int, part: float) -> str:
    """Return the colour of an operation, lightened.

    Args:
        operation: position in ``OPERATIONS``.
        part: from 0, the full colour, to 1, the palest shade.
    """
    return _between(OPERATIONS[operation].colour, OPERATIONS[operation].palest, part)


def heat(part: float) -> str:
    """Return the colour of an amount, from 0, a pale blue, to 1, the full one."""
    return _between(_between(SKY, WHITE, 0.75), BLUE, part)


def channels(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue from 0 to 255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _between(one: str, other: str, part: float) -> str:
    """Return the colour that is ``part`` of the way from ``one`` to ``other``."""
    both = zip(channels(one), channels(other), strict=True)
    # Channel by channel, as a browser mixes a colour with what is behind it.
    return "#" + "".join(f"{round((1 - part) * a + part * b):02X}" for a, b in both)


def device_colour(position: int, count: int) -> str:
    """Return the colour of what a device holds.

    Args:
        position: of the device.
        count: number of devices.
    """
    most = len(DEVICES)
    # So many hues that each has equally many devices, if that is possible; otherwise all hues there are.
    hues = count if count <= most else next((n for n in range(most, 2, -1) if count % n == 0), most)
    # Neighbours share a hue; the last hue may have fewer of them.
    each = -(-count // hues)
    return _between(DEVICES[position // each], WHITE, 0.65 * (position % each) / max(each - 1, 1))


def bucket_colour(number: int) -> str:
    """Return the colour of the bucket with this number; colours repeat after six, so that neighbours differ."""
    return DEVICES[number % len(DEVICES)]


def place_colour(position: int) -> str:
    """Return the colour of the virtual slice at this position among all slices drawn."""
    return PLACES[position % len(PLACES)]


def client_colour(position: int) -> str:
    """Return the colour of the client at this position among all clients of a run; colours repeat after seven."""
    return CLIENTS[position % len(CLIENTS)]


def themed(roles: dict[str, dict[str, str]]) -> dict[str, dict[str, dict[str, str]]]:
    """Return the colours of named models in every theme, so that a page can switch without asking the kernel.

    Args:
        roles: model name -> property -> role in ``THEMES``.

    Returns:
        Theme -> model name -> property -> colour.
    """
    return {
        theme: {name: {prop: colours[role] for prop, role in values.items()} for name, values in roles.items()}
        for theme, colours in THEMES.items()
    }
