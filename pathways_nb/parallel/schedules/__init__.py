"""Pipeline schedules as data: generators of action lists, one checker, closed forms, and their timing.

A schedule is the ordered list of actions of each device and nothing else. Each generator follows one paper, named in
its docstring; checker, timing and drawing are shared and do not know which generator made a schedule, so a schedule of
the user's own gets the same treatment. Execution of a pipeline on devices does not live in this package.
"""

# ruff: noqa: F401, I001 - each registers its schedules, which are listed in the order of these lines
from pathways_nb.parallel.schedules import classic
from pathways_nb.parallel.schedules import interleaved
from pathways_nb.parallel.schedules import zero_bubble
from pathways_nb.parallel.schedules import zero_bubble_chunks
from pathways_nb.parallel.schedules import v_shaped
from pathways_nb.parallel.schedules import v_1f1b
from pathways_nb.parallel.schedules import dualpipe
from pathways_nb.parallel.schedules import token_slices
