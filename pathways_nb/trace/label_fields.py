"""What each field of an event's label may be in a file: saved runs and traces are read by the same rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pathways_nb.plan.memory_categories import CATEGORIES
from pathways_nb.trace.rows import KINDS
from pathways_nb.util.json_text import LARGEST, is_amount, is_text, is_whole

MOST_SECONDS = 1e12
"""Largest distance of a time from the beginning of its run (30,000 years): sums and differences keep their digits."""
MOST_POSITION = 2**31 - 1
"""Largest node id, microbatch and the like: they are columns of 32 bits."""


def _whole(low: int, high: int) -> tuple[Callable[[Any], bool], str]:
    """Return a check for whole numbers from ``low`` to ``high``, and its description for errors."""
    return lambda value: is_whole(value, low, high), f"a whole number from {low} to {high}"


FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "kind": (lambda value: value in KINDS, f"one of {', '.join(KINDS)}"),
    **dict.fromkeys(("name", "program", "client", "place", "line", "basis", "stream"), (is_text, "text")),
    "route": (lambda value: value in ("", "host", "local", "ICI", "DCN"), "one of host, local, ICI, DCN or empty"),
    **dict.fromkeys(("node", "stage", "microbatch", "token_slice", "island", "host"), _whole(-1, MOST_POSITION)),
    **dict.fromkeys(("device", "devices"), _whole(0, MOST_POSITION)),
    "bytes": _whole(0, LARGEST),
    "flops": (is_amount, "a number from 0 on"),
    "latency": (lambda value: is_amount(value) and value <= MOST_SECONDS, "seconds from 0 on"),
    "parents": (
        lambda value: isinstance(value, tuple) and all(is_whole(one, 0, MOST_POSITION) for one in value),
        "a list of node ids",
    ),
    "category": (lambda value: value in ("", *CATEGORIES), f"one of {', '.join(CATEGORIES)} or empty"),
    "links": (lambda value: isinstance(value, tuple) and all(map(is_text, value)), "a list of texts"),
}
"""Of each field of a label: the check, and the words for what it may be; lists of JSON as tuples."""
