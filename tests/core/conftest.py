"""Refuses what this tier is without: a test here that compiles with XLA or starts a backend of JAX fails."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache

import jax
import pytest

COMPILING = "/jax/core/compile/backend_compile_duration"
compiled: list[str] = []
"""One entry for each compilation of this process since the listener was registered."""


def pytest_collection_finish() -> None:
    """Leave out of each garbage collection what was imported, which lasts as long as the process."""
    gc.collect()
    gc.freeze()


@cache
def listen() -> None:
    """Note every compilation from now on."""
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if event == COMPILING else None
    )


def has_started() -> bool:
    """Return whether JAX has started a backend, after which it refuses another number of CPU devices."""
    count = jax.config.jax_num_cpu_devices
    try:
        jax.config.update("jax_num_cpu_devices", 2 if count == 1 else 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", count)
    return False


@pytest.fixture(autouse=True)
def no_devices() -> Iterator[None]:
    """Fail a test that compiles with XLA, or that starts a backend of JAX."""
    listen()
    compiled_before, started_before = len(compiled), has_started()
    yield
    assert len(compiled) == compiled_before, "compiles with XLA: belongs in tests/jax"
    assert has_started() == started_before, "starts a backend of JAX: belongs in tests/jax"
