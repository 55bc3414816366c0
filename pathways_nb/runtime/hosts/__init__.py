"""What runs on a host of an island: it takes the controller's messages in order, launches, sends values and reports.

The protocol is here, too. Nothing knows Ray but ``host_actor`` and ``travel``, and nothing decides: tests make hosts in
one process.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
