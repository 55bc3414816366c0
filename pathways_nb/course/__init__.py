"""The course: the questions of each notebook, one file for each, and ``pw.check``.

What a notebook teaches is done by the other packages; only questions, answers and hints are here.
Only the package itself imports this package.
"""
