"""Pictures of pipeline schedules: live, still, and with more boxes than a browser can draw one by one.

Schedules are made and timed in ``pathways_nb.parallel.schedules``, never here.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
