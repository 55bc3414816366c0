"""Interactive pictures of choices: two schedules side by side, trade-offs of two costs, a plain curve.

Nothing is computed here that a script could not compute without a notebook; explorers hold only controls and drawings.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
