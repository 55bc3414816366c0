"""Comparisons: two runs, two schedules, or a run and the schedule of its pipeline, on one axis.

What is compared comes from ``results`` and ``parallel.schedules``; pictures are drawn in ``pathways_widgets``.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
