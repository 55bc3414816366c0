"""The course: the questions of each notebook, one file for each, and ``pw.check``.

What a notebook teaches is done by the other packages; only questions, answers and hints are here.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
