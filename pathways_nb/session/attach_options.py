"""What was asked for when devices were attached, as plain data that can be compared and kept with a run."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from pathways_nb.controller.policies import Policy


@dataclass(frozen=True)
class SimulatorOptions:
    """What was asked for of simulated devices; see ``pw.attach``."""

    chip: Any = None
    network: Any = None
    devices_per_host: int | None = None
    topology: tuple[int, ...] | None = None
    noise: float = 0.0
    seed: int = 0
    values: bool = False


@dataclass(frozen=True)
class AttachOptions:
    """What was asked for; attaching the same again does nothing."""

    kind: str
    islands: Any
    devices_per_island: int | None
    dispatch: str
    pin: bool
    policy: str | Policy = "stride"
    hbm: float | None = None
    dcn_latency: float = 0.0
    simulated: SimulatorOptions | None = None
    """What else simulated devices are like."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data; a policy of the user's, a chip and a network by their names."""
        parts = (self, self.simulated) if self.simulated is not None else (self,)
        plain = {field.name: getattr(part, field.name) for part in parts for field in fields(part)}
        plain |= {name: _named(plain[name]) for name in ("policy", "chip", "network") if name in plain}
        return {name: value for name, value in plain.items() if name != "simulated"}


def _named(value: Any) -> str | None:
    """A function, a chip or a network by its name."""
    if value is None or isinstance(value, str):
        return value
    return getattr(value, "__name__", None) or getattr(value, "name", None) or str(value)
