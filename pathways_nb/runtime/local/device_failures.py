"""What an error of JAX's says of the devices: out of memory, or lost.

JAX has one class for all errors of a backend; its text begins with a status code of gRPC.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np

_LONG = 200
_LOST = re.compile(r"\bDATA_LOSS\b")
"""What Pathways on Cloud answers for what was on a slice that is gone."""
_DOUBTFUL = re.compile(r"\b(DEADLINE_EXCEEDED|NOT_FOUND|UNAVAILABLE|INTERNAL|ABORTED)\b")
"""What it may answer at first, and what a program's own fault may give, too."""
_EXHAUSTED = re.compile(r"\bRESOURCE_EXHAUSTED\b|\bout of memory\b", re.IGNORECASE)


def is_exhausted(cause: BaseException) -> bool:
    """Return whether a device had too little memory."""
    return isinstance(cause, jax.errors.JaxRuntimeError) and _EXHAUSTED.search(str(cause)) is not None


def is_loss(cause: BaseException) -> bool:
    """Return whether an error says that devices are lost, with all that they held."""
    return isinstance(cause, jax.errors.JaxRuntimeError) and _LOST.search(str(cause)) is not None


def may_be_loss(cause: BaseException) -> bool:
    """Return whether devices that are lost might be behind an error; only they can tell (``answers``)."""
    return isinstance(cause, jax.errors.JaxRuntimeError) and _DOUBTFUL.search(str(cause)) is not None


def words_of(cause: BaseException) -> str:
    """Return the first line of an error, shortened."""
    line = str(cause).strip().partition("\n")[0]
    return line if len(line) <= _LONG else f"{line[:_LONG]}…"


def answers(device: Any) -> bool:
    """Return whether a device computes; waits for what it was given before."""
    try:
        # Compiled anew each time: what was compiled before may be gone with the device.
        found = jax.jit(lambda x: x + 1)(jax.device_put(np.float32(1), device))
        return float(found) == 2
    except jax.errors.JaxRuntimeError:
        return False
