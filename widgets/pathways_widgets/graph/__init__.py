"""The picture of a sharded dataflow graph: its layout, its columns, its labels.

A graph has no time axis; what happened when is in ``timeline``. ``timeline``, ``figures`` and the packages above them
may import this package.
"""
