"""The planes of an ``.xplane.pb`` in pieces, as JAX's own reader gives them.

That reader keeps a file whole, in eight times its size. Here each plane is cut between its events, and each piece is
given to it as a file of its own: with the plane's names, and with some of the events of one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import jax

from pathways_nb.runtime.recorded.xspace_bytes import PLANE, parts, spans
from pathways_nb.util.json_text import DamagedError, said

PIECE = 2**24
"""Bytes of events in a piece, at least; more where the names of a plane are longer, since each piece has them."""
_LINE, _EVENT = 3, 4
"""Fields of a plane and of a line."""


class PiecedProfile:
    """A profile with the ``planes`` of ``jax.profiler.ProfileData``, of which little is in memory at a time.

    Args:
        data: of the file.
        tell: is called now and then with the part of the file that was read, from 0 to 1.
    """

    def __init__(self, data: memoryview, tell: Callable[[float], object] = lambda share: None):
        read = [0]

        def add(size: int) -> None:
            read[0] += size
            tell(min(read[0] / len(data), 1.0))

        self.planes = [PiecedPlane(plane, add) for plane in parts(data, PLANE)]


class PiecedPlane:
    """A plane whose lines are read when they are asked for.

    Args:
        plane: the message.
        add: is called with the bytes of each piece.
    """

    def __init__(self, plane: memoryview, add: Callable[[int], object]):
        self._lines: list[memoryview] = []
        names = bytearray()
        for number, value, first, after in spans(plane):
            if number == _LINE and isinstance(value, memoryview):
                self._lines.append(value)
            else:
                names += plane[first:after]
        self._names, self._add = bytes(names), add

    @cached_property
    def _alone(self) -> Any:
        return _plane(self._names)

    @property
    def name(self) -> str:
        """The name."""
        return str(self._alone.name)

    @property
    def stats(self) -> Any:
        """What is said of the plane."""
        return self._alone.stats

    @cached_property
    def lines(self) -> list[PiecedLine]:
        """The lines."""
        return [PiecedLine(line, self._names, self._add) for line in self._lines]


class PiecedLine:
    """A line whose events are read piece by piece.

    Args:
        line: the message.
        names: what the plane has beside its lines.
        add: is called with the bytes of each piece.
    """

    def __init__(self, line: memoryview, names: bytes, add: Callable[[int], object]):
        self._line, self._names, self._add = line, names, add
        self._head, self._pieces = bytearray(), list[tuple[int, int]]()
        least = max(PIECE, len(names))
        begun = until = 0  # of events in a row
        for number, _, first, after in spans(line):
            if number != _EVENT:
                self._head += line[first:after]
                continue
            if begun < until and (first != until or until - begun >= least):
                self._pieces.append((begun, until))
                begun = first
            elif begun == until:
                begun = first
            until = after
        self._pieces += [(begun, until)] if begun < until else []

    @cached_property
    def name(self) -> str:
        """The name."""
        return str(self._read(b"").name)

    @property
    def events(self) -> Iterator[Any]:
        """The events, in the order of the file."""
        for first, after in self._pieces:
            self._add(after - first)
            yield from self._read(bytes(self._line[first:after])).events

    def _read(self, events: bytes) -> Any:
        return next(iter(_plane(self._names + _part(_LINE, bytes(self._head) + events)).lines))


def _plane(message: bytes) -> Any:
    """Return a plane as JAX reads it.

    Raises:
        DamagedError: it is none.
    """
    try:
        return next(iter(jax.profiler.ProfileData.from_serialized_xspace(_part(PLANE, message)).planes))
    except (RuntimeError, ValueError, TypeError, StopIteration) as error:
        raise DamagedError(said(error)) from None


def _part(field: int, message: bytes) -> bytes:
    """Return a message as a field of another."""
    size, length = len(message), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([field << 3 | 2, *length, size]) + message
