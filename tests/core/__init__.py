"""Tests that need no device and compile nothing: ``make fast``."""
