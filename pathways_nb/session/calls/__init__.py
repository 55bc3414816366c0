"""A call's way from the user's line to the driver: batched, traced, placed, compiled, submitted.

No scheduling decision, and no state beyond caches: that is in ``session``.
This package is imported by ``attach`` and the packages that stand above it.
"""
