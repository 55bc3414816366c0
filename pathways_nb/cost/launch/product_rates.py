"""FLOP/s of the products of a compiled program, by the type of their operands and the precision asked for.

At JAX's default precision a TPU multiplies float32 in one pass of bfloat16, and a GPU in TF32. Of more precision a TPU
makes three passes (high) or six (highest), and a GPU multiplies outside its tensor cores (highest); float64 as well.
"""

from __future__ import annotations

from typing import NamedTuple

import pathways_datasets
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hlo.hlo_work import OpWork

_NAMES = {"bf16": "bf16", "f16": "fp16", "f32": "fp32", **dict.fromkeys(("s8", "u8", "s4", "u4"), "int8")}
_PASSES = {"": 1, "high": 3, "highest": 6}
"""Passes of bfloat16 on a TPU, by precision."""


class ProductRate(NamedTuple):
    """How fast one device multiplies.

    Args:
        flops: FLOP/s by the data sheet.
        note: what was assumed; empty if the chip has a unit for it.
    """

    flops: float
    note: str = ""


def product_rate(work: OpWork, chip: Chip) -> ProductRate:
    """Return how fast a device makes the products of an operation.

    Args:
        work: of the operation, with products.
        chip: of the device.
    """
    device = chip.device
    name = "fp8" if work.dtype.startswith("f8") else _NAMES.get(work.dtype)
    if work.dtype == "f32" and chip.fp32_flops is None:
        return ProductRate(device.flops("fp32") / _PASSES[work.precision])
    if work.dtype == "f32" and chip.compiler is None:
        return ProductRate(device.flops("fp32"))  # as it was measured here
    if work.dtype == "f64" or (work.dtype == "f32" and work.precision == "highest"):
        rate = _outside_tensor_cores(chip)
        if rate is None:
            return ProductRate(device.flops("bf16"), _unknown(work, chip, "bfloat16"))
        return ProductRate(rate, _unknown(work, chip, "float32 outside tensor cores") if work.dtype == "f64" else "")
    if name is None:
        return ProductRate(device.flops("bf16"), _unknown(work, chip, "bfloat16"))
    return ProductRate(device.flops(name))


def _outside_tensor_cores(chip: Chip) -> float | None:
    """Return the FLOP/s of a GPU's other units in float32: two at each of their clocks; None if nobody says."""
    said = pathways_datasets.compilers()["gpu"].get(chip.compiler)
    return None if said is None else 2e9 * said["core_count"] * said["fpus_per_core"] * said["clock_rate_ghz"]


def _unknown(work: OpWork, chip: Chip, taken: str) -> str:
    asked = f" at precision {work.precision}" if work.precision else ""
    return f"no rate of {chip.name} is known for products of {work.dtype}{asked}: they count as {taken}"
