"""The one cost model: what a node, a transfer and a message take, on any chip, simulated or calibrated.

No driver and no clock: a cost is a number with its origin.
"""
