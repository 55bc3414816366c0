"""Results of a recording: runs, their files, and comparisons of two runs.

A result holds no device and no array on one, so it can be read after the devices are gone and on another machine.
Pictures of runs are in ``pathways_widgets``. Only ``session`` and the packages above it may import this one.
"""
