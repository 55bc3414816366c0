"""What theory says of a schedule: its bubble and its peak of memory, as formulas to test against and to show."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pathways_nb.trace.metrics import counted


class Size(NamedTuple):
    """How large a schedule is.

    Args:
        devices: p. microbatches: m. chunks: stages of one pipeline on each device, v. token_slices: of a sequence, k.
    """

    devices: int
    microbatches: int
    chunks: int = 1
    token_slices: int = 1

    @property
    def words(self) -> str:
        """As people say it: ``4 devices × 8 microbatches × 2 chunks``."""
        words = [counted(self.devices, "device"), counted(self.microbatches, "microbatch", "es")]
        words += [f"{self.chunks} chunks"] if self.chunks > 1 else []
        return " × ".join(words + ([f"{self.token_slices} token slices"] if self.token_slices > 1 else []))


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
        value: the same as a function. where: for which sizes and times it holds; everywhere if not said.
        says: the condition in words, empty if there is none.
    """

    text: str
    value: Callable[..., float]
    where: Callable[[Size, Times], bool] = lambda size, times: True
    says: str = ""
