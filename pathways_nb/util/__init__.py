"""Small helpers that know nothing of programs: progress, forks, intervals, words, tables.

They hold what several packages need and what none of them owns. Nothing in here knows programs or the event
record.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
