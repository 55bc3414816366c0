"""Interrupts at a chosen instant: what Ctrl-C does when it comes at exactly this bytecode.

Python raises ``KeyboardInterrupt`` in the main thread where a function begins, after a call, and where a loop begins
again. A trace function raises it there at the n-th such instant within chosen files, so all instants of one operation
can be tried one after the other. As the handler of Ctrl-C does, it puts off one that comes while a block is entered or
left.
"""

from __future__ import annotations

import dis
import sys
import threading
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pathways_nb
from pathways_nb.util import interrupts

OURS = str(Path(pathways_nb.__file__).parent)
FILES = (OURS, *(str(m.__file__) for m in (sys.modules["contextlib"], threading, weakref)), "concurrent/futures")
"""Beginnings, or parts, of the names of files whose instants count."""


@cache
def _is_chosen(filename: str) -> bool:
    return any(part in filename for part in FILES)


@cache
def _instants(code: CodeType) -> frozenset[int]:
    """Return the offsets of instructions before which an interrupt may be raised."""
    found, after_call = [], False
    for instruction in dis.get_instructions(code):
        if after_call or instruction.opname == "JUMP_BACKWARD":
            found.append(instruction.offset)
        after_call = instruction.opname in ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "CALL_INTRINSIC_1")
    return frozenset(found)


class Interrupt:
    """One interrupt at the n-th instant of what runs in the block; without one, the instants are counted.

    Args:
        at: the number of the instant, from 1; 0 for none.
    """

    def __init__(self, at: int = 0):
        self.at, self.seen, self.where = at, 0, ""

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not _is_chosen(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes = True
        begins = event == "call" and frame.f_code.co_name != "<genexpr>"  # which may be the end of a dropped one
        if begins or (event == "opcode" and frame.f_lasti in _instants(frame.f_code)):
            self.seen += 1
            if self.seen == self.at and interrupts.is_undivided(frame):
                self.at += 1
            elif self.seen == self.at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname} +{frame.f_lasti}"
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace

    def run(self, work: Callable[[], object]) -> bool:
        """Do ``work``, and return whether the interrupt came out of it."""
        try:
            sys.settrace(self._trace)
            try:
                work()
            finally:
                sys.settrace(None)
        except KeyboardInterrupt:
            return True
        return False
