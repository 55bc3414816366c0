"""The single controller's core: it decides placement, order and memory (Pathways, sections 4.1 to 4.6).

Events in, instructions out. No JAX, threads, clocks or printing: the code that decides on real devices is the code that
decides in the simulator, and every decision can be repeated in a test. The drivers of ``runtime`` send the events and
carry out the instructions.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
