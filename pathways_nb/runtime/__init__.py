"""What carries out the controller's instructions: drivers, their event loop, runs under way, compiled plans.

No decision about order, placement or memory is taken here.
This package is imported by ``session``, ``attach`` and ``experiments``.
"""
