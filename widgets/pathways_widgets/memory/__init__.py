"""The picture of memory: what each client held on each device over time.

Only columns and a Bokeh figure are here; widget and page are in ``figures``.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
