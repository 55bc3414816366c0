"""The driver for simulated devices: islands in simulated time, and client threads released one after another.

No real clock decides what a trace contains, except for threads that wait unseen (see ``thread_turns``).
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
