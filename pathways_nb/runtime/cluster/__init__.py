"""The driver for islands of hosts: processes of a Ray cluster, each with its own JAX devices.

The controller's side is here: it exports programs, sends one message to each host for a range of steps, and learns from
reports what has ended. What runs on a host is in ``runtime.hosts``. No decision about order or memory is taken here.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
