"""Training steps that others measured: read as rows, written as JAX programs, compiled and predicted.

A row names a model, a machine, how the one is divided over the other, and the seconds of a step (``step_rows``). It
becomes a training step as its framework runs it (``row_model``), which the chip's own compiler schedules; the schedule
is priced with constants that were fitted on published steps (``prediction``, ``step_fits``).
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
