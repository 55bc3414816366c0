"""From measured seconds to a model of this machine, and how far to trust it.

No measuring: that is ``calibration``.
"""
