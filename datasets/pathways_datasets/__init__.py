"""Small real inputs for notebooks, tests and benchmarks, read from what is on every machine: nothing is downloaded."""

from pathways_datasets.text import batches, stdlib_source

__all__ = ["batches", "stdlib_source"]
