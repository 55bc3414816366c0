"""``pw.calibrate``: kernels and runs that measure the attached devices, and the file that keeps the result.

This package measures and does not fit: fits are in ``cost.calibration``, which needs no devices and is tested on plain
numbers.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
