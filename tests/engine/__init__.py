"""Tests of the engine: programs, controller, islands, futures, cells."""
