"""Facts about the host for benches and saved runs: cores, memory, versions.

A figure means little without the machine it was measured on, so reports and archives carry these facts.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
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


def versions() -> dict[str, str]:
    """Return the versions that processes which share programs must agree on, by name."""
    # Without the patch level: what one 3.11 pickles, another reads.
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for package in ("jax", "jaxlib", "pathways_nb"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a folder
            found[package] = "not installed"
    return found
