"""How arrays are laid out over devices, and what a reshard moves: as data, as text, and as the picture's input.

Index ranges come from ``runtime.lowering.pieces``; pictures are drawn in ``pathways_widgets.shardings``. No array, no
device and no controller is needed here.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
