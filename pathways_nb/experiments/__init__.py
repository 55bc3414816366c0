"""Experiments on programs: ``pw.sweep`` over a grid of arguments, ``pw.predict`` for one call's makespan.

Nothing here draws: curves are in ``pathways_widgets.explorers``, runs in ``results``.
Only ``notebook``, ``bench`` and the package itself may import it.
"""
