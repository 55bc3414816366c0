"""The picture of memory: what each client held on each device over time.

No widget and no page: columns and a Bokeh figure.
"""
