"""Fully sharded data parallelism as a traced step and small passes over it (SimpleFSDP, arXiv 2411.00284).

A step is traced for one device as one flat list of operations. ``tracing`` adds the collectives, the modules of
``passes`` move, merge and repeat them, ``lowering`` makes the list a function again. What to merge is an ``FsdpPlan``.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
