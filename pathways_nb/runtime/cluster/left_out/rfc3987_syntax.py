"""Stands before the package of this name on the path of Ray's processes.

Each of them imports ``jsonschema``, which takes that package along where it is installed, as JupyterLab has it; and it
compiles a grammar for a second, to check international addresses that nobody here has. ``jsonschema`` does without.
"""

raise ImportError("rfc3987_syntax is left out of Ray's processes, because its import takes a second")
