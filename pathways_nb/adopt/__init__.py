"""Adopt a jitted step of any framework as it is: what it does on chips that are not here, line by line.

Taking a step over, compiling it for a topology, and the answers: collectives, memory, a timeline, comparisons, a check
for a pull request. What prices a compiled text is ``cost.launch``; what compiles is ``program.compiled_blocks``.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
