"""A controller that several notebooks share: the core and the messenger in an actor, a driver in each notebook.

The core is the same as everywhere. Its events come from several kernels, and its instructions go to the kernel whose
run or buffer they name; only launches go to the hosts from here, so that all hosts get one order.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
