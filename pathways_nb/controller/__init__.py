"""The pure core: events in, instructions out. Places, order and memory are decided here and only here.

No JAX, threads, clocks or printing.
"""
