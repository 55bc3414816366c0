"""Tests that use devices, real or simulated, or compile with XLA."""
