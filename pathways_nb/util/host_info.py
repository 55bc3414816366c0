"""Where something ran: cores, memory, versions. Told by benches and kept in saved runs."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

import psutil


def machine() -> dict[str, Any]:
    """``cores`` that this process may use, ``memory_bytes``, versions, platform."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return {
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
        "platform": platform.platform(),
    }
