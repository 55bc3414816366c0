"""Public programs, and a call's way from the user's line to the driver: batched, traced, placed, compiled, submitted.

No scheduling decision, and no state beyond caches: that is in ``session``.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
