"""A jaxpr as one flat list of operations: their FLOPs, bytes, splits, collectives and peak memory.

No compiler: these are estimates from the code alone.
"""
