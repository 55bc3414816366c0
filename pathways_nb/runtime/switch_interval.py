"""Python's switch interval, shortened while controllers have threads of their own.

Dispatchers launch from their own threads. While a cell computes in Python, each launch would wait for up to 5 ms, the
usual interval after which Python switches threads. The interval belongs to the whole process, so it is restored when
the last controller that shortened it closes.
"""

from __future__ import annotations

import sys
import threading

SECONDS = 5e-4
"""The shortened interval."""

_lock = threading.Lock()
_holders: set[ShortInterval] = set()
"""Those that are not released yet."""
_before = 0.0
"""The interval to restore, read when the first holder was made."""


class ShortInterval:
    """A claim on the short interval, which lasts until all claims of the process are released."""

    def __init__(self) -> None:
        global _before
        with _lock:
            if not _holders:
                _before = sys.getswitchinterval()
                sys.setswitchinterval(min(SECONDS, _before))
            _holders.add(self)

    def release(self) -> None:
        """Restore the interval if no other claim is left, unless other code has changed it meanwhile."""
        with _lock:
            if self in _holders:
                _holders.discard(self)
                if not _holders and sys.getswitchinterval() == min(SECONDS, _before):
                    sys.setswitchinterval(_before)
