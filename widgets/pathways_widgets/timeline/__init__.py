"""The timeline of a run: lanes, boxes, clients, busy devices, the critical path, at any level of detail.

No widget and no page: columns and a Bokeh figure.
"""
