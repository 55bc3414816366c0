"""The passes over a step: each says in edits how a step becomes another that computes the same.

``edits`` has what a pass sees and says, ``built_in_passes`` those that every step has, in their order,
``pass_registry`` those and the user's, ``plan_passes`` which of them carry out a plan. ``graph_edits`` carries edits
out on the list of operations that runs, ``sketch`` on what a search needs to time a plan. ``graph_checks`` is for
passes that return a graph in place of edits.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""

from pathways_nb.parallel.fsdp.passes.built_in_passes import bucket, finish, pace, prefetch, regather, sink

__all__ = ["bucket", "finish", "pace", "prefetch", "regather", "sink"]
