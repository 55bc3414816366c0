"""Accelerator chips: rates and memory of one chip, its links, and the part that one JAX device has of it.

The figures are in ``pathways_datasets/hardware.json``, each with its origin. Rates are peaks of the data sheet; the
share that a class of operations reaches is in ``cost.efficiency``, so that a measured share can be combined with any
chip.

A chip and a JAX device differ: TPU v2 and v3 list two devices a chip. Links and NICs belong to chips and hosts,
programs see devices, and ``Device`` divides the one by the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from pathways_nb.cost.hardware import tables
from pathways_nb.cost.hardware.networks import Network
from pathways_nb.cost.hardware.parameters import (
    Origin,
    Parameters,
    choice,
    count,
    counts,
    duration,
    fraction,
    optional_count,
    optional_name,
    optional_rate,
    rate,
)
from pathways_nb.errors import UsageError

# Units that multiply a type, in order of preference: one without a unit of its own is widened to the next that has.
_WIDENED = {
    "fp8": ("fp8", "bf16", "fp16", "fp32"),
    "int8": ("int8", "bf16", "fp16", "fp32"),
    "bf16": ("bf16", "fp32", "fp16"),
    "fp16": ("fp16", "bf16", "fp32"),
    # a TPU multiplies float32 in one bfloat16 pass unless more precision is asked for
    "fp32": ("fp32", "bf16", "fp16"),
}
_SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "int8": "int8", "uint8": "int8"}


@dataclass(frozen=True, repr=False, kw_only=True)
class Chip(Parameters):
    """A chip with the links, host and NIC around it; every figure is of one chip unless it says otherwise.

    All figures in SI units; bandwidths are of one direction.

    Attributes:
        bf16_flops: FLOP/s of dense matrix products in bfloat16; None where the chip has no unit for it.
        fp16_flops: the same in float16.
        fp32_flops: the same in float32.
        int8_flops: the same in int8.
        fp8_flops: the same in float8.
        hbm_bytes: memory.
        hbm_bw: bandwidth of the memory, bytes/s.
        devices_per_chip: devices that JAX lists: a core on TPU v2 and v3, two on v7, else a chip.
        chips_per_host: chips of one host.
        interconnect: ``"torus"``, ``"switch"``, or ``"mesh"`` (links without a switch, modelled as rings side by side).
        pod: the largest torus, in chips along each axis; or the chips that one switch or mesh joins.
        wrap_at: a torus axis closes to a ring if its length is a multiple of this.
        links: links of a chip.
        link_bw: bytes/s of each link.
        link_efficiency: the share of ``link_bw`` that large messages reach.
        hop_latency: seconds a hop, or a step through a switch.
        start_latency: seconds before a collective starts.
        nic_bw: bytes/s of a *host* to others.
        nic_rtt: seconds there and back of a small message between hosts.
        pcie_bw: bytes/s between host and chip.
        pcie_latency: seconds before a copy between host and chip starts.
        compiler: the name by which XLA's compiler for it knows the chip (``pathways_datasets/compilers.json``); None
            where none does.
    """

    bf16_flops: float | None = optional_rate("FLOP/s")
    fp16_flops: float | None = optional_rate("FLOP/s")
    fp32_flops: float | None = optional_rate("FLOP/s")
    int8_flops: float | None = optional_rate("FLOP/s")
    fp8_flops: float | None = optional_rate("FLOP/s")
    hbm_bytes: float = rate("bytes")
    hbm_bw: float = rate("bytes/s")
    devices_per_chip: int = count()
    chips_per_host: int = count()
    interconnect: str = choice("torus", "switch", "mesh")
    pod: tuple[int, ...] = counts()
    wrap_at: int | None = optional_count()
    links: int = count()
    link_bw: float = rate("bytes/s")
    link_efficiency: float = fraction()
    hop_latency: float = duration()
    start_latency: float = duration()
    nic_bw: float = rate("bytes/s")
    nic_rtt: float = duration()
    pcie_bw: float = rate("bytes/s")
    pcie_latency: float = duration()
    compiler: str | None = optional_name()

    def flops(self, dtype: Any) -> float:
        """Return the FLOP/s of dense matrix products of a type, at JAX's default precision.

        Args:
            dtype: a name (``"bf16"``, ``"bfloat16"``) or a dtype. A type without a unit of its own counts as the next
                wider one that has one; float32 on a TPU counts as bfloat16.

        Raises:
            UsageError: none of the chip's units multiplies it.
        """
        long = dtype if isinstance(dtype, str) else np.dtype(dtype).name
        # float8_e4m3fn, float8_e5m2 and the others are multiplied by the same unit.
        short = "fp8" if long.startswith("float8") else _SHORT.get(long, long)
        for name in _WIDENED.get(short, ()):
            # Names stand in order of preference; None is a unit that the chip does not have.
            found = getattr(self, f"{name}_flops")
            if found is not None:
                return found
        # The error names the units that this chip has.
        known = ", ".join(name for name in _WIDENED if getattr(self, f"{name}_flops")) or "none"
        raise UsageError(f"{self.name}: no rate is known for {dtype!r}; the chip has one for {known}.")

    @property
    def link_bw_effective(self) -> float:
        """Bytes/s of one link one way for large messages."""
        return self.link_bw * self.link_efficiency

    @property
    def devices_per_host(self) -> int:
        """JAX devices of one host."""
        return self.devices_per_chip * self.chips_per_host

    @property
    def device(self) -> Device:
        """The part of the chip that one JAX device has."""
        return Device(self)

    @property
    def network(self) -> Network:
        """The network of its hosts' NICs, used where no other network is named."""
        # A chip's table says nothing of what messages reach of the NIC; a network of its own does.
        nominal = Origin("assumed", "the nominal bandwidth of the NIC")
        origins = {"host_bw": self.origin("nic_bw"), "rtt": self.origin("nic_rtt"), "efficiency": nominal}
        return Network(base=f"NICs of {self.name}", origins=origins, host_bw=self.nic_bw, rtt=self.nic_rtt)


@dataclass(frozen=True)
class Device:
    """One JAX device's part of a chip: on TPU v3 half of its rate, memory and bandwidths."""

    chip: Chip

    def flops(self, dtype: Any) -> float:
        """Return the FLOP/s of dense matrix products of a type; see ``Chip.flops``."""
        return self.chip.flops(dtype) / self.chip.devices_per_chip

    @property
    def hbm_bytes(self) -> float:
        """Bytes of memory."""
        return self.chip.hbm_bytes / self.chip.devices_per_chip

    @property
    def hbm_bw(self) -> float:
        """Bytes/s of memory."""
        return self.chip.hbm_bw / self.chip.devices_per_chip

    @property
    def copy_bw(self) -> float:
        """Bytes/s of a copy within its memory, where each byte is read and written."""
        # Reading and writing share one bandwidth.
        return self.hbm_bw / 2

    @property
    def pcie_bw(self) -> float:
        """Bytes/s to or from the host while the chip's other devices copy, too."""
        # Lanes belong to the chip: all its devices copy over them.
        return self.chip.pcie_bw / self.chip.devices_per_chip

    @property
    def nic_bw(self) -> float:
        """Bytes/s to or from other hosts while the host's other devices send, too."""
        return self.chip.nic_bw / self.chip.devices_per_host


def chip(name: str | PathLike[str] | Chip) -> Chip:
    """Return a chip by its name, or from a JSON file of your own; see ``Chip`` for its fields.

    Args:
        name: such as ``"tpu_v3"`` or ``"gpu_h100_sxm"``; or the path of a file ``{"base": "tpu_v5p", "hbm_bw": 2e12}``
            (``base`` may be left out where every field is written).

    Raises:
        UsageError: an unknown name, or a file that cannot be read or says what no chip has.
    """
    return tables.find(Chip, "chips", name)
