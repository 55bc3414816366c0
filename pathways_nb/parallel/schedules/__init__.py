"""Pipeline schedules as data: generators of action lists, one checker, closed forms, and their timing."""

# ruff: noqa: I001 - the order of these lines is the one in which `registry.names()` lists the schedules
from pathways_nb.parallel.schedules import classic as classic
from pathways_nb.parallel.schedules import interleaved as interleaved
from pathways_nb.parallel.schedules import zero_bubble_chunks as zero_bubble_chunks
from pathways_nb.parallel.schedules import dualpipe as dualpipe
from pathways_nb.parallel.schedules import token_slices as token_slices
