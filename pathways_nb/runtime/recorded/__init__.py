"""What other tools recorded: profiles of JAX's profiler, and traces of XProf, Perfetto and PyTorch, as tasks on lanes.

``xplane`` reads the planes of a profile, which ``xspace_pieces`` gives it piece by piece. ``trace_json`` reads a
trace.json in pieces, and ``chrome_planes`` gives it the form of planes, so that one reader serves both, and
``pw.profile`` as well. ``torch_trace`` reads what PyTorch wrote.
``recorded_tasks`` holds what they found, ``task_kinds`` says of what kind each task is, ``recorded_run`` makes events.
Nothing that runs on a device is called from here.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
