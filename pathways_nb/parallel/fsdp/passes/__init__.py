"""The passes over a step: each takes a ``StepGraph`` and returns another that computes the same.

``sink`` gathers late, ``regather`` gathers again for the backward pass, ``bucket`` merges collectives, ``prefetch``
begins gathers early again, ``finish`` completes gradients late, and ``pace`` makes the compiler keep the order. Their
usual order is this one.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""

from pathways_nb.parallel.fsdp.passes.bucket import bucket
from pathways_nb.parallel.fsdp.passes.finish import finish
from pathways_nb.parallel.fsdp.passes.pace import pace
from pathways_nb.parallel.fsdp.passes.prefetch import prefetch
from pathways_nb.parallel.fsdp.passes.regather import regather
from pathways_nb.parallel.fsdp.passes.sink import sink

__all__ = ["bucket", "finish", "pace", "prefetch", "regather", "sink"]
