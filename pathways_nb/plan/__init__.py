"""The sharded dataflow graph, the virtual slices it asks for, and the plan with physical places, with its memory.

No tracing, no devices and no decisions: plain data and what follows from it.
"""
