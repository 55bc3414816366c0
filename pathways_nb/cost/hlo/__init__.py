"""Facts about a program from XLA, compiled ahead of time: its collectives and its memory.

Whole-array code has no collectives before the compiler's partitioner has chosen them, so a jaxpr cannot tell. Programs
are compiled here and never run.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
