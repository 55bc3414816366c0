"""What caused what in a record: edges between events, critical path, slack, idle time, what-if questions.

Only records are read; nothing is run or simulated again.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
