"""Small helpers that know nothing of programs: progress, forks, limits, JSON from outside, tables.

Nothing here knows devices, programs or the record.
"""
