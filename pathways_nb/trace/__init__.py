"""The one event record and what follows from it: metrics, dependencies, the critical path, comparisons.

Every view, export, metric and test reads this record and nothing else, whatever backend wrote it, so real and simulated
runs can be compared event by event. Nothing in this package runs or simulates; drivers write the record.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
