"""A machine that is known exactly, and what a calibration would measure on it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

from pathways_nb.cost.calibration.fitting import Roofline
from pathways_nb.cost.calibration.samples import Chain, Measured, Parted, Sample
from pathways_nb.cost.calibration.this_machine import fit
from pathways_nb.cost.collectives.collective import Collective
from pathways_nb.cost.collectives.pricing import collective
from pathways_nb.cost.jaxpr.node_work import Amount, Work

NODE, ALONE, CROWD, START, BYTE = 4e-4, 3e-4, 3.2, 5e-5, 2e-10
CALL, SENT, LAUNCH, NOTICE = 1e-4, 2e-4, 2.5e-4, 7e-5
FROM_HOST, BETWEEN = (2e-4, 1e-9), (3e-4, 5e-10)
LINES = {
    "matmul": Roofline(4e-11, 1e-10),
    "elementwise": Roofline(1e-9, 4e-10),
    "reduction": Roofline(0.0, 5e-10),
    "sort": Roofline(4e-8, 0.0),
}
"""Seconds while all four devices of both islands work."""
SHARES = {"all-reduce": 1.0, "all-gather": 0.5, "reduce-scatter": 0.8, "all-to-all": 0.4, "permute": 1.0}


def amount(kind: str, size: float, intensity: float) -> Amount:
    dtype = "float32" if kind == "matmul" else ""
    return Amount(kind, dtype, 0.0 if kind == "reduction" else size * intensity, size / 2, size / 2)


def measured(wobble: float = 0.0, seed: int = 0, islands: int = 2, devices: int = 4) -> Measured:
    """What would be measured with so much noise (the deviation of its logarithm)."""
    random = np.random.default_rng(seed)

    def noisy(seconds: float) -> float:
        return float(seconds * random.lognormal(0, wobble)) if wobble else seconds

    samples = {kind: tuple(_of_class(kind, noisy)) for kind in LINES}
    parted, solo = (Parted(16, noisy(8e-3), noisy(8e-3 + 15 * node)) for node in (NODE, ALONE if islands > 1 else NODE))
    empty = Measured(devices, islands, 1e9, True, (), (), parted, solo, {}, (), (), ())
    if devices > 1:
        samples |= {kind: tuple(_of_collective(kind, fit(empty).unit, noisy)) for kind in SHARES}
    fixed = CALL + SENT + NODE + NOTICE
    return Measured(
        devices,
        islands,
        1e9,
        True,
        _chains(fixed, NODE, noisy),
        _chains(fixed, LAUNCH, noisy),
        parted,
        solo,
        samples,
        tuple((noisy(1e-3), noisy(CROWD * 1e-3)) for _ in range(2)) if devices > 1 else (),
        tuple(_move("host to island", *FROM_HOST, NODE, noisy)),
        tuple(_move("island to island", *BETWEEN, ALONE, noisy)) if islands > 1 else (),
    )


def _chains(fixed: float, node: float, noisy: Callable[[float], float]) -> tuple[Chain, ...]:
    return tuple(Chain(n, noisy(fixed + n * node), CALL, SENT, 0.1) for n in (1, 4, 16, 32))


def _of_class(kind: str, noisy: Callable[[float], float]):
    """Every second one has all intensities, on both sides of the ridge."""
    for total, intensity in zip(np.geomspace(1e5, 1e8, 8), (0.1, 0.3, 10, 30) * 2, strict=True):
        size = float(total) / (1 + intensity * (kind != "reduction"))
        parts = [amount(kind, size, intensity)]
        if kind == "sort":  # comes with some of another class
            parts.append(amount("elementwise", size / 100, 1.0))
        seconds = sum(LINES[one.kind].seconds(one.flops, one.read + one.written) for one in parts)
        yield Sample(kind, Work(tuple(parts)), noisy(NODE + seconds), 0.1)


def _of_collective(kind: str, unit, noisy: Callable[[float], float]):
    for size in (10**4, 10**5, 10**6, 10**7, 10**8):
        one = Collective(kind, size, ("x",), unit.devices)
        over = collective(kind, one.whole_bytes, unit).bandwidth
        yield Sample(kind, Work((), (one,)), noisy(NODE + START + over * BYTE / SHARES[kind]), 0.1)


def _move(kind: str, anyway: float, byte: float, node: float, noisy: Callable[[float], float]):
    for size in (10**3, 10**4, 10**5, 10**6, 10**7):
        yield Sample(kind, Work(), noisy(node + anyway + byte * size), 0.1, size)


def forget_calibrations(patch: pytest.MonkeyPatch) -> None:
    """Forget what was calibrated in this process, as another session has; its files stay."""
    module = sys.modules["pathways_nb.calibration.calibrate"]  # the name of the function hides that of its module
    patch.setattr(module, "_kept", {})
