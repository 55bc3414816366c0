"""Results of a recording: runs, their files, and comparisons of two runs.

A saved run needs no devices: it can be read after they are gone, and on another machine.
Pictures of runs are in ``pathways_widgets``. Only ``session`` and the packages above it may import this one.
"""
