"""Tests of the compilers for chips that are not here: what they are told, and what is kept."""
