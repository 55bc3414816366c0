"""``pw.attach``: which devices, real or simulated, and a controller for them.

No measuring.
"""
