"""Pipeline schedules as data."""
