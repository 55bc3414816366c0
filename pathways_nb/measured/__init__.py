"""The measuring part of a calibration: what is run, and how it is timed through the attached controller."""
