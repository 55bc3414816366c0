"""Ways to split a model over places: pipeline schedules with their explorer, and a mixture of experts.

The modules build programs and describe orders; the controller alone decides when a node is dispatched. Schedules are
plain data, so that the same rows can be checked, timed, drawn and executed.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
