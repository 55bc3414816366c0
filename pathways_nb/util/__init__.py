"""Small helpers that know nothing of programs: progress, forks, bounds, JSON from outside, tables, JAX's primitives.

Nothing here knows devices, programs or the record.
Every room may import it; it imports only ``errors``.
"""
