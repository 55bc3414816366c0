"""Pipelines that run: a schedule and the functions of its stages become one program for the controller.

A stage is traced once, forward and backward, into a flat list of operations, which is cut into the parts F, I and W of
the schedule. This package has no executor: it calls computations in the schedule's order while a program is traced, and
the controller carries them out in that order like those of any program.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
