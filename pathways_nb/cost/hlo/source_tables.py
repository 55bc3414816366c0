"""The tables of files, lines and stack frames at the head of a compiled module's text.

An instruction says ``stack_frame_id=7``. Frame 7 names a location and the frame that called it, a location names a file
and a line: four tables, each a title and numbered rows. Numbers of callers are printed one too high: 1 is none. So the
outermost frame, the first one, seems to have called itself, by which this is known.
Older compilers write file and line at each instruction (``source_file="…" source_line=12``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from pathways_nb.plan.source_lines import describe, is_users

_NAMED = re.compile(r'^(\d+) "(.*)"$')
_NUMBERED = re.compile(r"^(\d+) \{(.*)\}$")
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_AT = re.compile(r'source_file="([^"]*)"(?:.*?source_line=(\d+))?')
_LOWERING = "/pathways_nb/compilers/lowered.py"
"""The file that makes the texts of steps; the call of a step in a text stands inside of it."""
_LIBRARY = re.compile(r"/(?:site|dist)-packages/([^/.]+)")
_FRAMEWORKS = ("flax", "equinox", "haiku", "optax")
"""Libraries that call the code of others."""
_TITLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


@dataclass
class SourceTables:
    """Where instructions come from.

    Args:
        files: names by number.
        functions: names by number.
        locations: number of the file, line, and number of the function, by number.
        frames: number of the location, and of the frame that called it, by number.
    """

    files: dict[int, str] = field(default_factory=dict)
    functions: dict[int, str] = field(default_factory=dict)
    locations: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    frames: dict[int, tuple[int, int]] = field(default_factory=dict)
    _title: str = field(default="", repr=False)
    _known: dict[int, list[tuple[str, int, str]]] = field(default_factory=dict, repr=False)

    def add(self, line: str) -> None:
        """Add a row, if a line of text in front of the computations is one."""
        if line in _TITLES:
            self._title = line
        elif self._title == "FileNames" and (found := _NAMED.match(line)):
            self.files[int(found[1])] = found[2]
        elif self._title == "FunctionNames" and (found := _NAMED.match(line)):
            self.functions[int(found[1])] = found[2]
        elif self._title in _TITLES[2:] and (found := _NUMBERED.match(line)):
            said = dict(part.split("=", 1) for part in found[2].split() if "=" in part)
            if self._title == "FileLocations":
                file, at, function = (int(said.get(name, 0)) for name in ("file_name_id", "line", "function_name_id"))
                self.locations[int(found[1])] = file, at, function
            else:
                self.frames[int(found[1])] = int(said.get("file_location_id", 0)), int(said.get("parent_frame_id", 0))

    def line_of(self, attributes: str) -> str:
        """Return the innermost line of the user's code that an instruction comes from; empty if there is none.

        Args:
            attributes: text of the instruction's attributes.
        """
        return next((describe(name, line) for name, line, _ in self._users(attributes)), "")

    def functions_of(self, attributes: str) -> tuple[str, ...]:
        """Return the user's functions that an instruction comes from, such as ``"Block.__call__"``, innermost first.

        Args:
            attributes: text of the instruction's attributes.
        """
        return tuple(name for *_, name in self._users(attributes) if name)

    def _users(self, attributes: str) -> list[tuple[str, int, str]]:
        """Return file, line and function of the frames of an instruction that are the user's, the innermost first."""
        frame, at = _FRAME.search(attributes), _AT.search(attributes)
        if frame is None:
            return [(at[1], int(at[2] or 0), "")] if at and is_users(at[1]) else []
        number = int(frame[1])
        if number not in self._known:
            stack = list(self._stack(number))
            # Outside of the step there is only the line that happened to ask for its text.
            end = next((at for at, (file, *_) in enumerate(stack) if file.endswith(_LOWERING)), None)
            self._known[number] = [one for one in stack[:end] if is_users(one[0])]
            if not self._known[number] and end is not None:
                self._known[number] = _of_one_library(stack[:end])
        return self._known[number]

    def _stack(self, frame: int) -> Iterator[tuple[str, int, str]]:
        """Yield file, line and function of a frame and of those that called it."""
        too_high = int(self.frames.get(1, (0, 0))[1] == 1)
        seen = set[int]()
        while frame in self.frames and frame not in seen:
            seen.add(frame)
            location, parent = self.frames[frame]
            frame = parent - too_high
            file, line, function = self.locations.get(location, (0, 0, 0))
            if file in self.files:
                yield self.files[file], line, self.functions.get(function, "")


def _of_one_library(stack: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
    """Return the frames of the library that a step is part of: the outermost one, if possible no framework.

    Args:
        stack: file, line and function of the frames of a step that has none of the user's, the innermost first.
    """
    libraries = [found[1] if (found := _LIBRARY.search(file)) else "" for file, *_ in stack]
    outwards = [library for library in reversed(libraries) if library not in ("", "jax", "pathways_nb")]
    own = next((library for library in outwards if library not in _FRAMEWORKS), next(iter(outwards), None))
    return [frame for frame, library in zip(stack, libraries, strict=True) if library == own]
