"""Experiments on programs: ``pw.sweep`` over a grid of arguments, ``pw.predict`` for one call's makespan.

Nothing here draws: curves are in ``pathways_widgets.explorers``, runs in ``results``.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
