"""The rooms of the house: each stands on those before it, and no import goes round in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT

ROOMS = [
    *"errors util jaxpr plan timing trace trace.causality cost.hardware cost.collectives cost.jaxpr cost.hlo cost cost.calibration".split(),
    *"cost.launch compilers published".split(),
    *"program controller runtime.lowering runtime runtime.local runtime.sim runtime.hosts runtime.cluster runtime.shared".split(),
    *"widgets.drawing widgets.graph widgets.timeline widgets.memory widgets.figures widgets.schedules".split(),
    *"widgets.shardings widgets.explorers widgets results shardings session session.calls session.checkpoints parallel".split(),
    *"attach calibration adopt comparisons experiments notebook course".split(),
    *("", "examples", "bench", "__main__"),
]
"""From the ground up; a room may import those before it. ``""`` is the front door, ``import pathways_nb``.

This list alone says who may import whom; a room's docstring says what lives there and what does not.
"""

WHO = "Packages later in the import order (``tests/core/test_import_layers.py``) may import this one."
"""The last line of each room's docstring."""

NEVER = {
    "util": ("jax", "bokeh", "pathways_widgets"),
    "jaxpr": ("jax", "jaxlib"),  # read by their fields
    "plan": ("jax", "jaxlib", "threading", "time"),
    "timing": ("jax", "jaxlib", "bokeh", "IPython"),
    "trace": ("jax", "jaxlib", "bokeh", "IPython"),
    "cost": ("bokeh", "IPython"),
    "cost.hardware": ("jax", "jaxlib"),
    "cost.collectives": ("jax", "jaxlib"),
    "cost.jaxpr": ("jax", "jaxlib"),
    "cost.calibration": ("jax", "jaxlib"),
    "program": ("bokeh", "IPython"),
    "controller": (
        *("jax", "jaxlib", "threading", "time", "asyncio", "queue", "concurrent", "logging"),
        *("bokeh", "ray", "IPython"),
    ),
    "runtime": ("bokeh", "IPython"),
    "runtime.local": ("bokeh", "IPython"),
    "runtime.sim": ("bokeh", "IPython"),
    "runtime.hosts": ("bokeh", "IPython"),
    "runtime.cluster": ("bokeh", "IPython"),
    "runtime.shared": ("bokeh", "IPython"),
    "widgets": ("jax", "jaxlib"),
}
"""What a room never imports."""

THROUGH = ("util", "jaxpr", "plan", "timing", "trace", "cost.hardware", "cost.collectives", "cost.jaxpr", "controller")
"""Rooms that do not reach it through the rooms below them, either."""


@cache
def modules() -> dict[str, Path]:
    """Every module of the package and of its views, by its full name."""
    found = {}
    for folder in (ROOT / "pathways_nb", ROOT / "widgets" / "pathways_widgets"):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(name: str) -> frozenset[str]:
    """Every module, or name of a module, that it imports: type checking and functions included."""

    def names() -> Iterator[str]:
        for node in ast.walk(ast.parse(modules()[name].read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    return frozenset(names())


@cache
def ours(name: str) -> frozenset[str]:
    """The modules of this project that it imports."""

    def module(imported: str) -> str:
        return imported if imported in modules() else imported.rpartition(".")[0]

    found = {module(one) for one in imports(name) if one.startswith(("pathways_nb", "pathways_widgets"))}
    return frozenset(found - {name})


def room_of(name: str) -> str:
    """The innermost room in which a module lies."""
    inside = name.replace("pathways_widgets", "widgets").removeprefix("pathways_nb").removeprefix(".")
    return max((room for room in ROOMS if inside == room or inside.startswith(f"{room}.") or not room), key=len)


def test_every_room_has_modules() -> None:
    assert {room_of(name) for name in modules()} == set(ROOMS)


def test_every_folder_is_a_room_or_lies_in_one() -> None:
    doors = {"": "pathways_nb", "widgets": "pathways_widgets"}
    strays = {name for name in modules() if (door := doors.get(room_of(name))) is not None and name != door}
    assert not strays, "their folders are not in ROOMS"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_stands_on_those_before_it(room: str) -> None:
    allowed = ROOMS[: ROOMS.index(room) + 1]
    upward = [
        f"{name} → {other}"
        for name in modules()
        for other in ours(name)
        if room_of(name) == room and room_of(other) not in allowed
    ]
    assert not upward


def test_no_import_goes_round_in_a_circle() -> None:
    try:
        tuple(TopologicalSorter({name: ours(name) for name in modules()}).static_order())
    except CycleError as error:
        pytest.fail(" → ".join(reversed(error.args[1])))


@pytest.mark.parametrize("room", NEVER)
def test_what_a_room_never_imports(room: str) -> None:
    pending, seen = [name for name in modules() if f"{room_of(name)}.".startswith(f"{room}.")], set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        wrong = [one for one in imports(name) for never in NEVER[room] if f"{one}.".startswith(f"{never}.")]
        assert not wrong, name
        pending += [other for other in ours(name) if room in THROUGH]


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in ("", "errors", "__main__")])
def test_a_room_says_what_lives_there_and_what_must_not(room: str) -> None:
    package = f"pathways_{room}" if room.startswith("widgets") else f"pathways_nb.{room}"
    lines = (ast.get_docstring(ast.parse(modules()[package].read_text())) or "").splitlines()
    assert len(lines) >= 3
    assert room == "widgets" or lines[-1] == WHO
