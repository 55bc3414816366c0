"""How often Python lets another thread run, while controllers have threads of their own.

Dispatchers launch from threads of their own: behind a busy cell each launch would wait Python's usual 5 ms. The
interval is the whole process's, so it is restored when the last controller that shortened it is closed.
"""

from __future__ import annotations

import sys
import threading

SECONDS = 5e-4

_lock = threading.Lock()
_holders: set[ShortInterval] = set()
_before = 0.0


class ShortInterval:
    """Python switches threads after ``SECONDS`` at the latest, until this and all others like it are released."""

    def __init__(self) -> None:
        global _before
        with _lock:
            if not _holders:
                _before = sys.getswitchinterval()
                sys.setswitchinterval(min(SECONDS, _before))
            _holders.add(self)

    def release(self) -> None:
        """Restore the interval if nobody else needs the short one; what somebody has set meanwhile stays."""
        with _lock:
            if self in _holders:
                _holders.discard(self)
                if not _holders and sys.getswitchinterval() == min(SECONDS, _before):
                    sys.setswitchinterval(_before)
