"""The tests in three tiers: ``core`` without devices, ``jax`` with them, ``browser`` in a real Chromium."""
