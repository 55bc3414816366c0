"""The course: its questions, a file for each notebook, and ``pw.check``.

Nothing that a notebook should show: what is taught is done by the other rooms.
"""
