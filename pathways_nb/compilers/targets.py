"""What a compiler is told about the devices that it compiles for: a chip, how many of them, and how they are joined.

A TPU is a torus of chips with coordinates, and may be several slices joined by their hosts' network. A GPU is a
description of the chip as text, in hosts that have some each. Both become the arguments of the public
``jax.experimental.topologies.get_topology_desc``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pathways_datasets
from pathways_nb.compilers.packages import CompilerKind
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.chips import chip as chip_of
from pathways_nb.cost.hardware.tables import names as names_of
from pathways_nb.cost.hardware.topology import Topology
from pathways_nb.errors import UsageError
from pathways_nb.util.words import counted

_HOST_SIDES = (2, 2, 1)
"""Chips of a TPU host along each axis, unless a topology says otherwise."""


@dataclass(frozen=True)
class CompilerTarget:
    """Devices that a compiler compiles for.

    Args:
        kind: of the compiler.
        devices: their number, over all slices.
        arguments: of ``get_topology_desc``, without the platform.
        memory: bytes of one device, as the chip's table has it.
    """

    kind: CompilerKind
    devices: int
    arguments: Mapping[str, Any]
    memory: float

    @property
    def platform(self) -> str:
        """The platform's name in JAX."""
        return "cuda" if self.kind == "gpu" else "tpu"

    @property
    def name(self) -> str:
        """A short name for people, such as ``"v5p:2x2x4"``, or ``"1x8x8"`` for 8 hosts of 8 GPUs."""
        return str(self.arguments["topology_name"])


@functools.cache  # several readers for each target
def _described() -> dict[str, Any]:
    """Return what the compilers are told about each chip; nothing changes it."""
    return pathways_datasets.compilers()


def kind_of(chip: Chip) -> CompilerKind | None:
    """Return which compiler knows a chip; None if none does."""
    # Chips of a torus are TPUs; another chip that names a TPU's compiler, or the reverse, has none.
    kind: CompilerKind = "tpu" if chip.interconnect == "torus" else "gpu"
    return kind if chip.compiler in _described()[kind] else None


def chip_of_kind(kind: str) -> Chip | None:
    """Return the chip whose devices JAX says to be of a kind, such as ``"TPU v5 lite"``; None if none is known."""
    said = _described()
    described = {one["description"]: name for name, one in said["gpu"].items()}
    names = described | said["gpu_kinds"] | said["tpu_kinds"]
    compiler = names.get(kind)
    found = (chip_of(name) for name in names_of("chips"))
    return next((chip for chip in found if compiler is not None and chip.compiler == compiler), None)


def target(topology: Topology, islands: int = 1) -> CompilerTarget:
    """Return what the compiler of a chip is told about some islands.

    Args:
        topology: of each island.
        islands: number of equal islands that one program is compiled for: slices of a TPU, joined by the network of
            their hosts; more hosts of GPUs.

    Raises:
        UsageError: no compiler knows the chip, or its hosts do not fill the islands.
    """
    chip = topology.chip
    kind = kind_of(chip)
    if kind == "tpu":
        return _tpu(topology, islands)
    if kind == "gpu":
        return _gpu(topology, islands)
    known = sorted({*_described()["gpu"], *_described()["tpu"]})
    raise UsageError(
        f"{chip.name}: no compiler knows this chip (compiler={chip.compiler!r}); the compilers know "
        f"{', '.join(known)}: write chip.replace(compiler=…) with the most similar one."
    )


def _tpu(topology: Topology, slices: int) -> CompilerTarget:
    """Return the torus of TPU chips that JAX describes, with rings where the chip's links close them."""
    chip = topology.chip
    # JAX counts three axes for every TPU; those of two have a third of length 1.
    shape = (*topology.shape, 1)[:3] if len(topology.shape) == 2 else topology.shape
    axes = [*topology.axes, None][:3]
    arguments: dict[str, Any] = {
        "topology_name": f"{chip.compiler}:{'x'.join(map(str, topology.shape))}",
        "wrap": [bool(axis and axis.wrap) for axis in axes],
        **_described()["tpu"][chip.compiler],
    }
    if any(length % side for length, side in zip(shape, _HOST_SIDES, strict=True)):
        # Hosts of 2 × 2 chips do not fill this torus, so each row of hosts is as long as the axis allows.
        arguments["chips_per_host_bounds"] = [math.gcd(n, side) for n, side in zip(shape, _HOST_SIDES, strict=True)]
    if slices > 1:
        arguments["num_slices"] = slices
    return CompilerTarget("tpu", topology.devices * slices, MappingProxyType(arguments), chip.device.hbm_bytes)


def _gpu(topology: Topology, islands: int) -> CompilerTarget:
    """Return hosts of GPUs.

    Raises:
        UsageError: the last host would have fewer GPUs than the others, which XLA cannot describe.
    """
    devices, per_host = topology.devices * islands, topology.devices_per_host
    per_host = min(per_host, topology.devices)
    if devices % per_host:
        near = devices - devices % per_host
        raise UsageError(
            f"{counted(devices, 'device')} in hosts of {per_host}: the compiler describes hosts that have equally "
            f"many; write devices_per_host={math.gcd(devices, per_host)}, or {near or per_host} devices."
        )
    hosts = f"1x{devices // per_host}x{per_host}"  # partitions × hosts × devices of a host
    chip = topology.chip
    arguments = {"topology_name": hosts, "topology": hosts, "target_config": chip_text(chip)}
    return CompilerTarget("gpu", devices, MappingProxyType(arguments), chip.device.hbm_bytes)


def chip_text(chip: Chip) -> str:
    """Return XLA's description of a GPU, a ``GpuTargetConfigProto`` as text.

    Memory and its bandwidth are those of the chip, so that ``chip.replace(hbm_bytes=…)`` is compiled for what it says;
    where the chip has the nominal figures of its data sheet, they are those that a real one reports.
    """
    known = _described()
    found = {**known["gpu_common"], **known["gpu"][chip.compiler]}
    found.pop("source")
    description, features = found.pop("description"), found.pop("features")
    major, minor = found.pop("compute_capability")
    if "yours" in (chip.origin("hbm_bytes").kind, chip.origin("hbm_bw").kind):
        found |= {"device_memory_size": int(chip.hbm_bytes), "memory_bandwidth": int(chip.hbm_bw)}
    lines = [f"  {name}: {value}" for name, value in found.items()]
    capability = f"  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }}"
    return "\n".join([
        "gpu_device_info {", *lines, capability, "}",
        'platform_name: "CUDA"', "dnn_version_info { major: 9 minor: 10 patch: 0 }",
        f'device_description_str: "{description}"', "",
    ])  # fmt: skip
