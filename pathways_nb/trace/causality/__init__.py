"""What caused what in a record: edges between events, critical path, slack, idle time, what-if questions.

Only records are read; nothing is run or simulated again.
This package is imported by ``results`` and the packages that stand above it.
"""
