"""Layouts of arrays and what reshards move, without devices."""
