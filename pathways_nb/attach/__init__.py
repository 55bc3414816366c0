"""``pw.attach``: which devices, real or simulated, and a controller for them.

No measuring.
``calibration`` and what lies above it may import it.
"""
