"""``pw.calibrate``: kernels and runs that measure the attached devices, and the file that keeps what was found.

No fit: that is ``cost.calibration``.
"""
