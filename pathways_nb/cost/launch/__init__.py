"""Seconds of a compiled launch, from the schedule of its operations: what each takes, and when each runs.

``constants`` has the few numbers per chip and software stack that no data sheet gives, each with its source and its
spread. ``op_seconds`` prices one operation, ``launch_timing`` puts a schedule on the queues of a device.
``opened_launch`` is the whole from inside: each operation at its time (``unrolled_ops``), and the memory
(``launch_memory``, ``memory_levels``). What the operations are is read in ``cost.hlo``.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
