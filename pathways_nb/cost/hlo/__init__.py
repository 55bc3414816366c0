"""What XLA makes of a program, compiled ahead of time: collectives and memory.

Nothing here runs a program.
The cost model and the simulator may import it.
"""
