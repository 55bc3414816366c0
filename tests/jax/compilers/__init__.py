"""Tests with the compilers for chips that are not here."""
