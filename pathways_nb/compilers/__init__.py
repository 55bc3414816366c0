"""XLA's own compilers for GPUs and TPUs, run on a machine that has neither, and what they say about a program.

Both compile for a *topology*: chips that are described, not attached (``targets``). A program is lowered in this
process (``lowered``) and compiled in another one (``compiling``, ``child``), which is ended as soon as the scheduled
program and its memory are known, or when the user interrupts. What came out is kept on disk by content
(``disk_cache``), and so are the executables of nodes that run here (``kept_executables``). The compilers come in
packages of their own, installed into a folder of this project (``packages``), because inside the user's environment
they would change what ``jax.devices()`` does and prints.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
