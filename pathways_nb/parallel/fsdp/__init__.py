"""Fully sharded data parallelism as a traced step and small passes over it (SimpleFSDP, arXiv 2411.00284).

A step is traced for one device as one flat list of operations (``step_graph``). ``tracing`` adds the collectives,
``scan_gathers`` those in loops, the modules of ``passes`` move, merge and repeat them, ``lowering`` makes the list a
function again. Where to look:

* What a user calls: ``front_end``, ``step``, and behind it ``step_functions`` and ``step_program``; what they refuse:
  ``fsdp_checks`` and ``loss_checks``; how parameters are split: ``modes`` and ``sharded_parameter``.
* Plans, which say what to merge: ``fsdp_plan``, ``plan_text``, ``plans``. ``step_planner`` answers what can be asked of
  one before it runs, by ``outline``, ``plan_search`` and ``bound``.
* Simulated time: ``step_work``, ``operation_costs``, ``stream_tasks``, ``timeline``, ``memory``. Real: ``measured``.
* The explorer: ``explorer``, ``step_picture``, ``variants``.

Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
