"""How far predicted seconds may be off: by what is hidden, by the spread of constants, by what no constant explains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

from pathways_nb.cost.launch.constants import LaunchConstants, table
from pathways_nb.cost.launch.launch_timing import LaunchSeconds

UNEXPLAINED = 0.065
"""Share of the seconds by which steps are off for reasons that are no constant.

Half of the published steps that are predicted without their source are off by less than 0.043 (``bench published``); of
errors with a normal distribution, this is the standard deviation.
"""
CALIBRATED = 0.35
"""The same on devices that a calibration has measured: eight of nine steps of two layers on four virtual CPU devices
were off by less, with other work on the cores.
"""


class SecondsBand(NamedTuple):
    """Seconds with both bands together.

    Args:
        seconds: in the compiler's order.
        low: the least.
        high: the most.
    """

    seconds: float
    low: float
    high: float


def band_of(
    seconds_with: Callable[[LaunchConstants], LaunchSeconds], known: LaunchConstants, chip: str, stack: str = "jax"
) -> SecondsBand:
    """Return seconds with their band.

    The band reaches from all communication hidden to none, and both ways by what the spread of single constants does
    and by what no constant explains. Each constant goes to its low and its high value while the others stay; the
    differences add up as independent ones.

    Args:
        seconds_with: returns the seconds with some constants.
        known: the constants.
        chip: name of the chip.
        stack: ``"jax"`` or ``"torch"``.
    """
    found = seconds_with(known)
    middle = found.ordered
    below = above = (UNEXPLAINED * middle) ** 2
    for field in fields(LaunchConstants):
        entry: Any = table(chip, stack)[field.name]
        used = getattr(known, field.name)
        scale = used / entry.value if entry.value else 1.0
        for value in (entry.low * scale, entry.high * scale):
            if value and value != used:
                moved = seconds_with(known.changed(**{field.name: value})).ordered - middle
                below, above = below + min(0.0, moved) ** 2, above + max(0.0, moved) ** 2
    return _around(found, below, above)


def calibrated_band(found: LaunchSeconds) -> SecondsBand:
    """Return seconds with their band where a calibration has measured the constants.

    Args:
        found: the seconds with these.
    """
    off = (CALIBRATED * found.ordered) ** 2
    return _around(found, off, off)


def _around(found: LaunchSeconds, below: float, above: float) -> SecondsBand:
    """Return seconds with their band, which reaches from all communication hidden to none as well.

    Args:
        found: the seconds.
        below: square of how much less they may be.
        above: square of how much more they may be.
    """
    middle = found.ordered
    below += (middle - found.hidden) ** 2
    above += (found.exposed - middle) ** 2
    return SecondsBand(middle, max(0.0, middle - below**0.5), middle + above**0.5)
