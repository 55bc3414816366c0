"""Small helpers that know nothing of programs: progress, forks, limits, JSON from outside, tables.

They hold what several packages need and what none of them owns. Nothing in here knows devices, programs or the event
record, so that every package may import it; it imports only ``errors``.
"""
