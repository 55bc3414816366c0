"""The timeline of a run: lanes, boxes, clients, busy devices, the critical path, at any level of detail.

Only columns and Bokeh figures are here; widget and page are in ``figures``. ``memory``, ``figures`` and the packages
above them may import this package.
"""
