"""Training states on disk: what a tree consists of, the files that Orbax reads and writes, and the way back to places.

A state is written and read shard by shard; what is done with its values is the business of ``session.calls``.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
