"""Pictures of shardings: an array of any rank as blocks coloured by device, and what a reshard moves.

What is drawn is computed in ``pathways_nb.shardings``, and read here through protocols.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
