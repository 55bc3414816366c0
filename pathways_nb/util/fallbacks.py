"""What to do where something failed that the work does not depend on: go on, and say so once."""

from __future__ import annotations

import threading
import warnings

_lock = threading.Lock()
_told: set[str] = set()


def fall_back(failed: str, error: BaseException | None, instead: str) -> None:
    """Warn that something failed and what is done instead; once in a process for each thing that fails.

    Args:
        failed: what could not be done, as the beginning of a sentence.
        error: why; ``None`` where it was merely not told.
        instead: what holds now, and what a person may do, as whole sentences.
    """
    with _lock:
        if failed in _told:
            return
        _told.add(failed)
    why = "it is not told" if error is None else f"{type(error).__name__}: {str(error) or 'no text'}"
    warnings.warn(f"{failed} ({why}). {instead}", RuntimeWarning, stacklevel=3)
