"""Pipeline schedules as data: generators of action lists, one checker, closed forms, and their timing."""
