"""A profile in the form of XLA's ``xplane.proto``, encoded by the tests: for planes that no machine here can write."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

Value = int | float | str | bytes


class MadeEvent(NamedTuple):
    """One event; times in nanoseconds since the profile began."""

    name: str
    start: int
    lasts: int
    stats: Mapping[str, Value] = {}


class MadePlane(NamedTuple):
    """One plane with the events of each of its lines."""

    name: str
    lines: Mapping[str, Iterable[MadeEvent]]
    stats: Mapping[str, Value] = {}


def encoded(*planes: MadePlane) -> bytes:
    """The bytes of an ``XSpace``."""
    return b"".join(part(1, _plane(plane)) for plane in planes)


def part(field: int, value: bytes | str | int) -> bytes:
    """One field of a message."""
    if isinstance(value, int):
        return _varint(field << 3) + _varint(value % 2**64)
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _plane(plane: MadePlane) -> bytes:
    events: dict[str, int] = {}
    stats: dict[str, int] = {}

    def stat(name: str, value: Value) -> bytes:
        made = part(1, stats.setdefault(name, len(stats) + 1))
        if isinstance(value, float):
            return made + _varint(2 << 3 | 1) + struct.pack("<d", value)
        return made + part({int: 4, str: 5, bytes: 6}[type(value)], value)

    def event(one: MadeEvent) -> bytes:
        made = (
            part(1, events.setdefault(one.name, len(events) + 1))
            + part(2, one.start * 1000)
            + part(3, one.lasts * 1000)
        )
        return made + b"".join(part(4, stat(name, value)) for name, value in one.stats.items())

    lines = [
        part(1, number) + part(2, name) + part(3, 0) + b"".join(part(4, event(one)) for one in ones)
        for number, (name, ones) in enumerate(plane.lines.items())
    ]
    made = part(2, plane.name) + b"".join(part(3, line) for line in lines)
    made += b"".join(part(6, stat(name, value)) for name, value in plane.stats.items())
    for field, table in ((4, events), (5, stats)):
        for name, number in table.items():
            made += part(field, part(1, number) + part(2, part(1, number) + part(2, name)))
    return made
