"""The course: its questions, a file for each notebook, and ``pw.check``."""
