"""Devices as backends show them, without any: for what is read of a device, and grouped by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from pathways_nb.runtime import local_islands


def _none() -> None:
    return None


@dataclass(eq=False)
class FakeDevice:
    """A device with the attributes that a test gives it, and no others but these."""

    id: int
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100 80GB HBM3"
    stats: Callable[[], Mapping[str, int] | None] = field(default=_none, repr=False)
    more: dict[str, Any] = field(default_factory=dict, repr=False)

    def __getattr__(self, name: str) -> Any:
        if name != "more" and name in self.more:
            return self.more[name]
        raise AttributeError(name)

    def memory_stats(self) -> Mapping[str, int] | None:
        return self.stats()


def tpu(number: int, *coords: int, **more: Any) -> FakeDevice:
    """A TPU v5e at some coordinates."""
    return FakeDevice(number, "tpu", "TPU v5 lite", more={"coords": list(coords), "core_on_chip": 0, **more})


def refuses() -> None:
    raise RuntimeError("UNIMPLEMENTED: not here")


def cpu_devices(count: int) -> list[Any]:
    """Devices of a client of their own, which stand for accelerators that compute."""
    maker = local_islands._client_maker()
    assert maker is not None
    return list(local_islands._make_client(maker, count, ()).devices())


def backend_error(text: str) -> Exception:
    """An error as a backend raises it."""
    return jax.errors.JaxRuntimeError(text)
