"""Pipeline schedules as data: generators of action lists, one checker, closed forms, and their timing."""

from pathways_nb.parallel.schedules import classic  # noqa: F401 - registers its schedules
