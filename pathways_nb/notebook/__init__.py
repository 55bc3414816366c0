"""The notebook: ``%%pathways`` and ``%pathways``, and an executed notebook as one HTML page.

The magics parse options and call the same functions that scripts call; nothing is decided here.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
