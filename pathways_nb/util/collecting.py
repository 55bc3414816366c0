"""Python's garbage collector, kept out of a short block of work."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector in a block.

    Creating thousands of objects that stay alive would make it examine the whole process, for 100 ms and more.
    """
    enabled = gc.isenabled()  # a user, or a block around this one, may have disabled it before
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
