"""Small helpers that know nothing of programs: intervals, words, progress, limits, JSON, tables, JAX's primitives.

Nothing here knows devices, programs or the record.
"""
