"""The timeline of a run: lanes, boxes, clients, busy devices, the critical path, at any level of detail.

Only columns and Bokeh figures are here; widget and page are in ``figures``.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
