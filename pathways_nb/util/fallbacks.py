"""A warning for optional work that failed: continue without it, and say so once.

Some calls into JAX or the system fail on some backends or machines although the program can continue with less, for
example without a memory limit. To ignore such a failure would hide what is missing; to raise it would stop work that
does not depend on it.
"""

from __future__ import annotations

import threading
import warnings

_lock = threading.Lock()
_told: set[str] = set()


def fall_back(failed: str, error: BaseException | None, instead: str) -> None:
    """Warn that something failed and what is done instead, once in a process for each value of ``failed``.

    Args:
        failed: what could not be done, as the beginning of a sentence.
        error: the reason; ``None`` if nothing was raised, but information is missing.
        instead: what applies now and what the user may do, in complete sentences.
    """
    # Several threads compile at the same time, and each may find the same failure.
    with _lock:
        if failed in _told:
            return
        _told.add(failed)
    why = "the backend reports nothing" if error is None else f"{type(error).__name__}: {str(error) or 'no text'}"
    # The line that called the function which falls back.
    warnings.warn(f"{failed} ({why}). {instead}", RuntimeWarning, stacklevel=3)
