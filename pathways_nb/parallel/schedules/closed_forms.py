"""Closed forms of a schedule's bubble and peak memory, as formulas to test against and to show.

A formula carries its text, its function and the sizes and times for which it holds, in one object, so that what a
picture prints is what the tests evaluate. Published formulas often hold for some times only (DualPipe's for F = I ≥ W):
``where`` says so, and outside it nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pathways_nb.util.words import counted


class ScheduleSize(NamedTuple):
    """The size of a schedule.

    Args:
        devices: number of devices, p.
        microbatches: number of microbatches, m.
        chunks: stages of one pipeline on each device, v.
        token_slices: slices of a sequence, k.
    """

    devices: int
    microbatches: int
    chunks: int = 1
    token_slices: int = 1

    def __str__(self) -> str:
        words = [counted(self.devices, "device"), counted(self.microbatches, "microbatch", "es")]
        words += [f"{self.chunks} chunks"] if self.chunks > 1 else []
        words += [f"{self.token_slices} token slices"] if self.token_slices > 1 else []
        return " × ".join(words)


class Times(NamedTuple):
    """Times of one microbatch through one whole device, in seconds or any other unit.

    Args:
        F: forward.
        I: gradient by the input.
        W: gradient by the weights.
    """

    F: float = 1.0
    I: float = 1.0  # noqa: E741 - what the field calls it
    W: float = 1.0

    @property
    def B(self) -> float:  # noqa: N802
        """Time of both gradients at once."""
        return self.I + self.W


class ClosedForm(NamedTuple):
    """A formula, as a text and as a function.

    Args:
        text: as people write it, of p, m, v, k, F, I, W, B (and r, the device).
        value: the same as a function, of size and times for a bubble, of size and device for a peak.
        where: for which sizes and times it holds; everywhere if not said.
        says: ``where`` in words.
    """

    text: str
    value: Callable[..., float]
    where: Callable[[ScheduleSize, Times], bool] = lambda size, times: True
    says: str = ""

    def at(self, size: ScheduleSize, given: Times | int) -> float | None:
        """Return the value of the formula; None where it does not hold.

        Args:
            size: of the schedule.
            given: the times, of a bubble; the device, of a peak, whose ``where`` is asked with F = I = W.

        Returns:
            A bubble in the unit of the times, or a peak in microbatches of activations.
        """
        # A peak depends on the order alone, which is made for equal times.
        times = given if isinstance(given, Times) else Times()
        return self.value(size, given) if self.where(size, times) else None
