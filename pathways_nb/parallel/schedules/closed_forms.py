"""What theory says of a schedule: its bubble and its peak of memory, as formulas to test against and to show."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pathways_nb.util.words import counted


class Size(NamedTuple):
    """How large a schedule is.

    Args:
        devices: p. microbatches: m. chunks: stages of one pipeline on each device, v. token_slices: of a sequence, k.
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
    """Seconds (or any other unit) of one microbatch through one whole device, as closed forms have them.

    Args:
        F: forward. I: gradient by the input. W: gradient by the weights.
    """

    F: float = 1.0
    I: float = 1.0  # noqa: E741 - what the field calls it
    W: float = 1.0

    @property
    def B(self) -> float:  # noqa: N802
        """Both gradients at once."""
        return self.I + self.W


class ClosedForm(NamedTuple):
    """A formula, in words for people and as a function.

    Args:
        text: as people write it, of p, m, v, k, F, I, W, B (and r, the device).
        value: the same as a function, of size and times for a bubble, of size and device for a peak.
        where: for which sizes and times it holds; everywhere if not said. says: the same in words.
    """

    text: str
    value: Callable[..., float]
    where: Callable[[Size, Times], bool] = lambda size, times: True
    says: str = ""

    def at(self, size: Size, given: Times | int) -> float | None:
        """What it gives, in the unit of the times or in microbatches; None where it does not hold.

        Args:
            given: the times, of a bubble; the device, of a peak, which is that of F = I = W.
        """
        times = given if isinstance(given, Times) else Times()
        return self.value(size, given) if self.where(size, times) else None
