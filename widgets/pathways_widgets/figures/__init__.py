"""Figures as people see them: a live widget, a page without a kernel, a still picture, and the browser's scripts.

What the pictures show is in ``graph``, ``timeline`` and ``memory``.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
