"""What JAX's own reader does not tell of an ``.xplane.pb``: whether it is one, the compiled modules in it, its parts.

The file is a protobuf message: fields, each a number with its kind and a value. Here only lengths are followed, and
only the plane that holds modules is looked into.
"""

from __future__ import annotations

from collections.abc import Iterator

from pathways_nb.util.json_text import DamagedError

PLANE, _LAST_FIELD = 1, 4
"""Fields of the whole: planes, errors, warnings, names of hosts."""
_NAME, _METADATA = 2, 4
"""Fields of a plane, and of what it says of an event: the name, and the table of what is said."""
_VALUE, _STATS, _BYTES = 2, 5, 6
"""Fields of an entry: its value; of that: its stats; of a stat: its bytes."""
_MODULES = b"/host:metadata"


def modules_in(data: memoryview) -> dict[str, bytes]:
    """Return the compiled modules of a profile, each as a serialised ``HloProto``, by name without number.

    Raises:
        DamagedError: this is no profile, or it ends in the middle.
    """
    found, planes = dict[str, bytes](), 0
    for number, value in _fields(data):
        if not 1 <= number <= _LAST_FIELD or not isinstance(value, memoryview):
            raise DamagedError(f"it has a field {number}, which no profile has")
        if number != PLANE:
            continue
        planes += 1
        if any(name == _MODULES for name in _texts(value, _NAME)):
            found |= _modules_of(value)
    if not planes:
        raise DamagedError("it has no planes")
    return found


def _modules_of(plane: memoryview) -> dict[str, bytes]:
    found = {}
    for number, entry in _fields(plane):
        if number != _METADATA or not isinstance(entry, memoryview):
            continue
        for field, value in _fields(entry):
            if field == _VALUE and isinstance(value, memoryview):
                name = next(_texts(value, _NAME), b"").decode(errors="replace").partition("(")[0]
                protos = [bytes(one) for stat in parts(value, _STATS) for one in parts(stat, _BYTES)]
                if name and protos:
                    found[name] = protos[0]
    return found


def first_part(data: bytes, wanted: int) -> bytes:
    """Return the first value of one field of a message; empty if it has none."""
    return next(_texts(memoryview(data), wanted), b"")


def parts(view: memoryview, wanted: int) -> Iterator[memoryview]:
    """Yield the values of one field that are messages, texts or bytes."""
    return (value for number, value in _fields(view) if number == wanted and isinstance(value, memoryview))


def _texts(view: memoryview, wanted: int) -> Iterator[bytes]:
    return (bytes(value) for value in parts(view, wanted))


def _fields(view: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yield number and value of each field of a message; see ``spans``."""
    return ((number, value) for number, value, _, _ in spans(view))


def spans(view: memoryview) -> Iterator[tuple[int, memoryview | int, int, int]]:
    """Yield number and value of each field of a message, and where it begins and ends.

    Raises:
        DamagedError: it is none.
    """
    at, end = 0, len(view)
    while at < end:
        first = at
        key, at = _varint(view, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(view, at)
            yield key >> 3, value, first, at
            continue
        size, at = (8, at) if kind == 1 else (4, at) if kind == 5 else _varint(view, at) if kind == 2 else (-1, at)
        if size < 0 or not key >> 3:
            raise DamagedError(f"byte {at} begins nothing that a profile has")
        if at + size > end:
            raise DamagedError(f"it ends in the middle: a part of {size} bytes has {end - at}")
        yield key >> 3, view[at : at + size], first, at + size
        at += size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, and the position behind it."""
    value = shift = 0
    while at < len(view) and shift < 64:
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise DamagedError(f"byte {at} ends no number")
