"""The options that devices were attached with, as plain data.

They are frozen dataclasses for two reasons: ``pw.attach`` compares them, so that running a notebook's first cell again
keeps the controller and everything it holds, and a saved run stores them, so that a reader knows what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pathways_nb.controller.policies import Policy
from pathways_nb.runtime.sim.chip_compiler import CompilerChoice


@dataclass(frozen=True)
class SimulatorOptions:
    """Options of simulated devices only, as given to ``pw.attach("sim:…")``."""

    chip: Any = None
    network: Any = None
    devices_per_host: int | None = None
    topology: tuple[int, ...] | None = None
    noise: float = 0.0
    seed: int = 0
    values: bool = False
    compiler: CompilerChoice = "auto"
    host: Any = None


@dataclass(frozen=True)
class ClusterOptions:
    """Options of hosts of a Ray cluster only, as given to ``pw.attach("ray", …)``."""

    address: str | None = None
    name: str | None = None
    devices_per_host: int | None = None
    transfers: str | None = None
    unresponsive_after: float | None = None


@dataclass(frozen=True)
class AttachOptions:
    """All options of one ``pw.attach`` call; attaching with equal options again keeps the controller."""

    kind: str
    islands: Any
    devices_per_island: int | None
    dispatch: str
    pin: bool
    policy: str | Policy = "stride"
    hbm: float | None = None
    dcn_latency: float = 0.0
    simulated: SimulatorOptions | None = None
    """Further options of simulated devices; ``None`` on real ones."""
    cluster: ClusterOptions | None = None
    """Further options of hosts of a cluster; ``None`` on other devices."""

    def as_dict(self) -> dict[str, Any]:
        """Return the options as JSON-ready data, with a user's policy, a chip and a network replaced by their names."""
        parts = [part for part in (self, self.simulated, self.cluster) if part is not None]
        plain = {field.name: getattr(part, field.name) for part in parts for field in fields(part)}
        # A function or a chip of the user's has no form in JSON; its name says what was measured.
        plain |= {name: option_name(plain[name]) for name in ("policy", "chip", "network") if name in plain}
        if "host" in plain:
            plain["host"] = dict(plain["host"]) if isinstance(plain["host"], Mapping) else option_name(plain["host"])
        return {name: value for name, value in plain.items() if name not in ("simulated", "cluster")}


def option_name(value: Any) -> str | None:
    """Return the name of a function, a chip or a network; text and ``None`` unchanged."""
    if value is None or isinstance(value, str):
        return value
    return getattr(value, "__name__", None) or getattr(value, "name", None) or str(value)
