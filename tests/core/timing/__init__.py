"""The event record and what is computed from it."""
