"""Work, memory and collectives as XLA compiles them, and calibration."""
