"""The attached controller as a user meets it: programs, calls, futures, tenants, elastic devices, saved states, status.

This package takes no scheduling decision (``controller`` does) and touches no device (``runtime`` does).
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
