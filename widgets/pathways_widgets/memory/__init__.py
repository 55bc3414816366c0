"""The picture of memory: what each client held on each device over time.

Only columns and a Bokeh figure are here; widget and page are in ``figures``. ``figures`` and the packages above it may
import this package.
"""
