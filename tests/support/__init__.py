"""What tests of several tiers share."""
