"""The controller's state machine: events in, instructions out."""
