"""Facts about the host for benches and saved runs: cores, memory, versions.

A figure means little without the machine it was measured on, so reports and archives carry these facts.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

import psutil


def machine() -> dict[str, Any]:
    """Return facts about this host.

    Returns:
        ``cores`` that this process may use, ``memory_bytes``, versions of Python, JAX and jaxlib, and ``platform``.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return {
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "jax": version("jax"),
        "jaxlib": version("jaxlib"),
        "platform": platform.platform(),
    }
