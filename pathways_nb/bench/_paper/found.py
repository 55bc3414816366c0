"""What a simulation of one point of the table gives."""

from __future__ import annotations

from typing import NamedTuple


class Found(NamedTuple):
    """Our number, what the simplest formula gives, and a word on both; ``declared`` says what they stand beside."""

    ours: float
    baseline: float | None = None
    says: str = ""
