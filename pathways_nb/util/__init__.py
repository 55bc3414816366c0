"""Small helpers that know nothing of programs: intervals, words, progress, forks, bounds, JSON from outside, tables.

Nothing here knows devices, programs or the record.
Every room may import it; it imports only ``errors``.
"""
