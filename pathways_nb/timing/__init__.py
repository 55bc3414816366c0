"""Tasks on lanes, in time: a queue of events, solvers of fixed orders and loops, and one analysis of timed tasks.

A task takes time on one or several lanes: devices, streams, links, a host, the controller. It begins when the last of
what it waits for lets it. Schedules, the streams of a sharded step and the records of every driver are such tasks, with
times that were solved for or observed; what follows from times and waits is computed here and nowhere else. The
simulator, whose order appears while time runs, shares the queue of events.
Packages later in the import order (``tests/core/test_import_layers.py``) may import this one.
"""
