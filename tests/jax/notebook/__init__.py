"""Magics, the course's notebooks, the demo page and the README, as a reader runs them."""
