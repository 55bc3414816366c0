"""The sides of a torus: how many chips lie along each axis, as the user says or as nearly cubic as a pod holds.

What such a shape means for links and collectives is in ``topology``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache

from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.cost.hardware.parameters import is_count
from pathways_nb.errors import PlaceError
from pathways_nb.util.words import counted, plural


def times(shape: Sequence[int]) -> str:
    """Return ``(4, 8)`` as ``4 × 8``."""
    return " × ".join(map(str, shape))


def chips_of(chip: Chip, devices: int) -> int:
    """Return the number of chips of so many devices.

    Raises:
        PlaceError: a part of a chip is left over.
    """
    each = chip.devices_per_chip
    # Fewer devices than a chip has are a part of one; more have to be whole chips.
    if devices > each and devices % each:
        fix = f"write {devices - devices % each} or {devices - devices % each + each}"
        raise PlaceError(f"devices_per_island={devices}: {chip.name} has {each} devices a chip; {fix}.")
    return math.ceil(devices / each)


def most_cubic(chip: Chip, devices: int, chips: int) -> tuple[int, ...]:
    """Return the most nearly square or cubic arrangement that a pod holds.

    Raises:
        PlaceError: there is none; the nearest numbers of devices are named.
    """
    most = math.prod(chip.pod) * chip.devices_per_chip
    asked = f"devices_per_island={devices}: {_counted(chip, chips)}"
    if devices > most:
        fix = f"use several islands of up to devices_per_island={most}"
        raise PlaceError(f"{asked}, a pod of {chip.name} has {times(chip.pod)} ({counted(most, 'device')}); {fix}.")
    found = _arrangement(chips, chip.pod)
    if found is None:
        near = [_near(chip.pod, chips, step) for step in (-1, 1)]
        fixes = [
            f"{math.prod(one) * chip.devices_per_chip} ({times(one)} {plural(math.prod(one), 'chip')})"
            for one in near
            if one
        ]
        raise PlaceError(f"{asked}, which fill no torus within {times(chip.pod)}; write {' or '.join(fixes)}.")
    return found


def _near(pod: tuple[int, ...], chips: int, step: int) -> tuple[int, ...] | None:
    """Return the arrangement of the next smaller or larger number of chips that has one; None if none has.

    Args:
        pod: chips along each axis of a pod.
        chips: the number that has none.
        step: -1 for a smaller number, 1 for a larger one.
    """
    # One number after another: those that fill a torus lie close together.
    candidates = range(chips + step, 0 if step < 0 else math.prod(pod) + 1, step)
    return next((found for n in candidates if (found := _arrangement(n, pod))), None)


def given_shape(chip: Chip, devices: int, chips: int, topology: Sequence[int]) -> tuple[int, ...]:
    """Return the user's arrangement, if it has the right number of chips and fits a pod.

    Raises:
        PlaceError: it does not.
    """
    # One number is a row of chips; whether the chip has such a torus is checked below.
    shape = tuple(topology) if isinstance(topology, Sequence) else (topology,)
    asked = f"topology={topology!r}"
    if not all(map(is_count, shape)):
        raise PlaceError(f"{asked}: write whole numbers of at least 1, such as {chip.pod}.")
    if len(shape) != len(chip.pod):
        axes = "1 axis" if len(shape) == 1 else f"{len(shape)} axes"
        fix = f"write {counted(len(chip.pod), 'number')}, such as {chip.pod}"
        raise PlaceError(f"{asked}: {axes}, but {chip.name} is a torus of {len(chip.pod)}; {fix}.")
    if not _fits(shape, chip.pod):
        limit = f"a pod of {chip.name} has {times(chip.pod)} chips"
        raise PlaceError(f"{asked}: {limit}; use several islands.")
    if math.prod(shape) != chips:
        has = math.prod(shape)
        fix = f"write devices_per_island={has * chip.devices_per_chip}"
        # Two ways out: the number that fits the shape, or a shape that fits the number.
        near = _arrangement(chips, chip.pod)
        fix += f" or topology={near}" if near else ""
        raise PlaceError(
            f"{asked} has {counted(has, 'chip')}, but devices_per_island={devices}: {_counted(chip, chips)}; {fix}."
        )
    return shape


def _counted(chip: Chip, chips: int) -> str:
    """Return a number of chips in words."""
    return (
        f"{counted(chips, 'chip')} of {each} devices" if (each := chip.devices_per_chip) > 1 else counted(chips, "chip")
    )


def _fits(shape: Sequence[int], pod: Sequence[int]) -> bool:
    """Return whether a box fits a pod, turned as needed."""
    return all(n <= limit for n, limit in zip(sorted(shape), sorted(pod), strict=True))


@cache
def _arrangement(chips: int, pod: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the box of so many chips within a pod with the least sum of sides, longest last; None for none."""
    # In any orientation: a pod of 16 × 20 × 28 holds 28 × 4 × 4, whatever the order of its axes.
    found = [shape for shape in boxes(chips, (max(pod),) * len(pod)) if _fits(shape, pod)]
    # The least sum of sides is the most nearly cubic box, with the fewest hops from end to end.
    return min((tuple(sorted(shape)) for shape in found), key=lambda shape: (sum(shape), shape), default=None)


def boxes(chips: int, most: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield every box of so many chips with no side longer than ``most`` says."""
    # A recursion over the axes: each side divides what the sides before it leave.
    if not most:
        if chips == 1:
            yield ()
        return
    for side in range(1, min(chips, most[0]) + 1):
        if chips % side == 0:
            yield from ((side, *rest) for rest in boxes(chips // side, most[1:]))
