"""The notebook: ``%%pathways`` and ``%pathways``, and executed notebooks as one HTML page or as a site.

The magics parse options and call the same functions that scripts call; nothing is decided here.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
