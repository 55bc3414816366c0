"""A trace.json, plain or compressed, read in pieces: half a gigabyte never stands in memory as a whole.

The format is Chrome's: an object with a list ``traceEvents``, or that list alone. Each event is decoded by itself; of
what stands beside the list, short values are kept.
"""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pathways_nb.util.json_text import DamagedError, said

PIECE = 2**20
"""Bytes, when unpacked, that are read at a time."""
MOST_VALUE = 2**26
"""Characters of the longest event, or value beside the list of events, that is read."""
_DECODER = json.JSONDecoder(strict=False)  # PyTorch writes names of functions with control characters
_UNFINISHED = ("Unterminated", "Invalid \\")
"""How the decoder's errors begin that may come from text that goes on in the next piece."""
_LONGEST_WORD = 16
"""Characters of a literal of JSON, at most, that a piece may end in."""
_SPACE = " \t\r\n"


class TraceJson:
    """The events of a file, one after another.

    Args:
        path: of the file.
        tell: is called now and then with the part of the file that was read, from 0 to 1.
    """

    def __init__(self, path: Path, tell: Callable[[float], object] = lambda share: None):
        self.beside: dict[str, Any] = {}
        """What stands beside the list of events; complete when all events were read."""
        self.pieces = 0
        """How many pieces were read."""
        self._path, self._tell = path, tell
        self._text, self._at, self._before, self._ended = "", 0, 0, False
        self._more: Callable[[], bool] = lambda: False

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events.

        Raises:
            DamagedError: it is no such trace, or it ends in the middle.
        """
        try:
            with self._path.open("rb") as raw:
                size = max(self._path.stat().st_size, 1)
                packed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                opened: Any = gzip.GzipFile(fileobj=raw) if packed else raw
                decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
                self._more = lambda: self._add(opened.read(PIECE), decode, raw.tell() / size)
                yield from self._top()
        except (OSError, EOFError, zlib.error) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise DamagedError(f"it cannot be unpacked ({said(error)})") from None

    def _add(self, piece: bytes, decode: Callable[[bytes], str], share: float) -> bool:
        """Add a piece of the file; return whether there was one."""
        self._before += self._at
        self._text, self._at = self._text[self._at :] + decode(piece), 0
        self._ended = not piece
        self.pieces += bool(piece)
        self._tell(share)
        return bool(piece)

    def _top(self) -> Iterator[dict[str, Any]]:
        first = self._next()
        if first == "[":
            yield from self._list(may_lack_end=True)
            return
        if first != "{":
            raise DamagedError("it is no JSON object or list")
        found, sign = False, self._next()
        while sign != "}":
            if sign != '"':
                raise self._wrong("a name")
            self._at -= 1
            name = self._value()
            if self._next() != ":":
                raise self._wrong("':'")
            if name == "traceEvents":
                found = True
                if self._next() != "[":
                    raise DamagedError("traceEvents is no list")
                yield from self._list(may_lack_end=False)
            else:
                self._next()  # spaces
                self._at -= 1
                self.beside[name] = self._value()
            sign = self._next()
            if sign == ",":
                sign = self._next()
            elif sign != "}":
                raise self._wrong("',' or '}'")
        if not found:
            raise DamagedError("it has no traceEvents, so it is no trace")

    def _list(self, may_lack_end: bool) -> Iterator[dict[str, Any]]:
        """Yield the events up to the end of the list, which Chrome allows to be missing in a file of nothing else."""
        while True:
            sign = self._next("]" if may_lack_end else "")
            if sign == "]":
                return
            if sign == ",":
                continue
            self._at -= 1
            event = self._value()
            if not isinstance(event, dict):
                raise DamagedError(f"character {self._before + self._at}: an event is no object")
            yield event

    def _next(self, at_end: str = "") -> str:
        """Return the next sign that is no space, and go behind it; at the end of the file ``at_end``, if given."""
        while True:
            while self._at < len(self._text):
                sign = self._text[self._at]
                self._at += 1
                if sign not in _SPACE:
                    return sign
            if not self._more():
                if at_end:
                    return at_end
                raise self._in_the_middle()

    def _value(self) -> Any:
        """Return the value that begins here, and go behind it."""
        while True:
            left = len(self._text) - self._at
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                # A number at the end of a piece may go on in the next.
                whole = isinstance(value, (dict, list, str)) or end < len(self._text) - _LONGEST_WORD
                if whole or self._ended:
                    self._at = end
                    return value
            except json.JSONDecodeError as error:
                # Text that only goes on in the next piece is wrong at its end, or has a string without one.
                if not error.msg.startswith(_UNFINISHED) and error.pos < len(self._text) - _LONGEST_WORD:
                    raise DamagedError(f"character {self._before + error.pos}: {error.msg}") from None
                if self._ended:
                    raise self._in_the_middle() from None
            except (RecursionError, ValueError) as error:
                raise DamagedError(f"character {self._before + self._at}: {said(error)}") from None
            if left > MOST_VALUE:
                raise DamagedError(f"character {self._before + self._at}: a value of more than {MOST_VALUE} characters")
            self._more()

    def _in_the_middle(self) -> DamagedError:
        return DamagedError(f"it ends in the middle, after {self._before + len(self._text)} characters")

    def _wrong(self, wanted: str) -> DamagedError:
        there = self._text[max(self._at - 1, 0) :][:20]
        return DamagedError(f"character {self._before + self._at} is not {wanted}: {there!r}")
