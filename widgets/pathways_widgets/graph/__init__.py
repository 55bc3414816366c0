"""The picture of a sharded dataflow graph: its layout, its columns, its labels.

A graph has no time axis; what happened when is in ``timeline``.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
