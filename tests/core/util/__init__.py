"""Progress and ranges of devices."""
