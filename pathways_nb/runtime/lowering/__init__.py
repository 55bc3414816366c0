"""From a plan to a compiled plan: executables, layouts of arguments, and the moves between places.

Nothing is launched here, and no thread waits for a device; the pool in ``executables`` only compiles.
This package is imported by ``runtime`` and the packages that stand above it.
"""
