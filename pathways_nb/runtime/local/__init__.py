"""The driver for JAX devices of this process: a dispatcher and two watchers for each island.

Time is real; nothing simulated is here.
This package is imported by ``attach`` and ``session``.
"""
