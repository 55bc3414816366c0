"""What XLA makes of a program, compiled ahead of time: collectives and memory.

Nothing here runs a program.
"""
