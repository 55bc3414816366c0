"""What carries out the controller's instructions: drivers, their event loop, runs under way, compiled plans.

No decision about order or memory.
"""
