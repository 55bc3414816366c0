"""Benches that compare this tool with its peers on the user's own machine: ``python -m pathways_nb bench NAME``.

A bench is a module with ``run() -> {"figures": {name: number}, "detail": ...}``, and ``"units": {name: unit}`` for
figures whose names do not tell the unit. One whose ``run`` takes ``short`` has a short form, and says in ``SPEED`` for
which of its figures higher or lower is faster. ``report`` finds and prints them, ``against`` compares with earlier
ones; ``stopwatch``, ``lab`` and ``peers`` are helpers. A figure whose peer is not installed is absent, never invented.
Names of figures are stable, because the README and issues refer to them.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
