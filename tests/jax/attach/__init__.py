"""Attaching devices, and what lies on them."""
