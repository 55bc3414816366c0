"""How many random examples a test tries: as many as it says, a tenth of them under ``--hypothesis-profile=fast``."""

from __future__ import annotations

from hypothesis import settings


def examples(count: int) -> settings:
    """Return settings of ``count`` examples, or of the share of them that the chosen profile tries."""
    default = settings()
    return settings(default, max_examples=max(1, count * default.max_examples // 100))
