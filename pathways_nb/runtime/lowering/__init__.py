"""From a plan to a compiled plan: executables, layouts of arguments, and the moves between places.

Nothing is launched here, and no thread waits for a device; the pool in ``executables`` only compiles.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
