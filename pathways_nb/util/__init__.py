"""Small helpers that know nothing of programs: progress, forks, limits, JSON from outside, tables, JAX's primitives.

Nothing here knows devices, programs or the record.
"""
