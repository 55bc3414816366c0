"""Tests of ``pw.fsdp``."""
