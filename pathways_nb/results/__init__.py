"""Results of a recording: runs and their files.

A saved run needs no devices: it can be read after they are gone, and on another machine. A dump of XLA becomes a run,
too (``opened_dump``): one launch from inside, which need not have run anywhere. Pictures of runs are in
``pathways_widgets``.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
