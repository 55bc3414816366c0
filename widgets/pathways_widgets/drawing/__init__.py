"""The parts that all pictures share: colours, sizes, a scene of shapes, axes, and the contract of a view.

Nothing here knows what a picture shows.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
