"""The one cost model: seconds of a node, a transfer and a message, on any chip, simulated or calibrated.

Every cost is a number with its origin. Drivers and clocks are elsewhere: the simulator asks this package, and what it
answers depends on nothing but its arguments, so answers can be kept. ``program`` and the packages above it may import
it; the packages inside it go from hardware up to calibration.
"""
